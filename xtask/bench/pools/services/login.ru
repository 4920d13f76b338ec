# A request checks a password: about 2 ms of CPU time, and ten times that for one in ten.
require "openssl"

run(lambda do |_|
  rounds = rand < 0.1 ? 40_000 : 4_000
  key = OpenSSL::PKCS5.pbkdf2_hmac("password", "salt", rounds, 32, "SHA256")
  [200, { "Content-Type" => "text/plain" }, [key.unpack1("H*")]]
end)
