// A cluster of WORKERS processes of Node.js. A request checks a password: about 2 ms of CPU time, and ten times that for one in ten.
const cluster = require("node:cluster");
const { pbkdf2Sync } = require("node:crypto");
const http = require("node:http");

if (cluster.isPrimary) {
    for (let worker = 0; worker < Number(process.env.WORKERS); worker++) cluster.fork();
} else {
    const login = (_, response) => {
        const rounds = Math.random() < 0.1 ? 40000 : 4000;
        response.end(pbkdf2Sync("password", "salt", rounds, 32, "sha256").toString("hex"));
    };
    http.createServer(login).listen(Number(process.env.PORT), "127.0.0.1");
}
