<?php
// A request checks a password: about 2 ms of CPU time, and ten times that for one in ten.
echo hash_pbkdf2("sha256", "password", "salt", mt_rand(1, 10) === 10 ? 30000 : 3000);
