-- What the visitors of the example ask for, and a summary that Slackline's spec reads.
--
-- Of sixteen requests one is for the page, one for its style sheet, the others for JSON answers;
-- all accept gzip, as browsers do. The requests are formatted once, so that wrk itself costs little.

local paths = {
   "/index.html", "/item-200.json", "/item-500.json", "/item-1000.json",
   "/item-200.json", "/item-2000.json", "/item-200.json", "/item-1000.json",
   "/style.css", "/item-500.json", "/item-200.json", "/item-1000.json",
   "/item-200.json", "/item-2000.json", "/item-500.json", "/item-200.json",
}
local formatted = {}
local turn = 0

function init(_)
   wrk.headers["Accept-Encoding"] = "gzip"
   for index, path in ipairs(paths) do
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
   io.write(line:format("duration_s", summary.duration / 1e6))
   io.write(line:format("requests_per_s", summary.requests / (summary.duration / 1e6)))
   io.write(line:format("bytes_per_request", summary.bytes / math.max(summary.requests, 1)))
   io.write(line:format("latency_p50_us", latency:percentile(50)))
   io.write(line:format("latency_p99_us", latency:percentile(99)))
   io.write(line:format("errors",
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
