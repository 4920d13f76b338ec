"""A request checks a password: about 2 ms of CPU time, and ten times that for one in ten. For gunicorn (`wsgi`) and uvicorn (`asgi`)."""

import hashlib
import random


def login():
    rounds = 40000 if random.random() < 0.1 else 4000
    return hashlib.pbkdf2_hmac("sha256", b"password", b"salt", rounds).hex().encode()


def wsgi(_, start_response):
    body = login()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope, _, send):
    if scope["type"] != "http":
        return
    body = login()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
