-- What the visitors ask for, by the environment's MIX, and a summary that Slackline's specification reads.

local mixes = {
   api = {
      "/item-200.json", "/item-500.json", "/item-1000.json", "/item-2000.json",
      "/item-1000.json", "/item-2000.json", "/item-500.json", "/item-2000.json",
   },
   pages = { "/index.html", "/index.html", "/index.html", "/style.css" },
}
local formatted = {}
local turn = 0

function init(_)
   wrk.headers["Accept-Encoding"] = "gzip"
   for index, path in ipairs(mixes[os.getenv("MIX")]) do
      formatted[index] = wrk.format("GET", path)
   end
end

function request()
   turn = turn % #formatted + 1
   return formatted[turn]
end

-- wrk gives times in microseconds (its SCRIPTING file).
function done(summary, latency, _)
   local errors = summary.errors
   local line = "slackline %s: %.3f\n"
   io.write(line:format("requests", summary.requests))
   io.write(line:format("requests_per_s", summary.requests / (summary.duration / 1e6)))
   io.write(line:format("bytes_per_request", summary.bytes / math.max(summary.requests, 1)))
   io.write(line:format("latency_p99_us", latency:percentile(99)))
   io.write(line:format("errors",
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
