-- Of 500 requests one is for a page of 1 MiB, larger than the socket buffers, 40 for pages of 64 KiB, the others for small pages. Each thread
-- begins at another place of the cycle.

local threads = 0

function setup(thread)
   thread:set("first", threads * 41)
   threads = threads + 1
end

local formatted = {}
local turn = 0

function init(_)
   local small, medium, large = wrk.format("GET", "/small"), wrk.format("GET", "/medium"), wrk.format("GET", "/large")
   for index = 1, 500 do
      formatted[index] = index == 250 and large or index % 12 == 0 and medium or small
   end
   turn = first
end

function request()
   turn = turn % #formatted + 1
   return formatted[turn]
end
