-- The request stream of the graal-inlining example, for wrk:
--
--   wrk -t1 -c4 -d20s --latency -s requests.lua http://127.0.0.1:PORT -- [SEED] [USERS]
--
-- 60 % timelines, 35 % reads of a tweet, 5 % writes, as in a service that is mostly read. Each wrk thread sends a fixed
-- cycle of requests that depends on SEED (1), USERS (3000, as given to the service) and the thread's number alone:
-- two services under the same options receive the same requests in the same order.

local timelines, reads = 0.60, 0.35
local tweets_per_user = 16 -- DataSet.TweetsPerUser: the tweets with ids up to USERS * 16 are never dropped
local cycle_length = 16384 -- long enough that no cache of the CPU holds the answers, short enough to build in no time

local threads = 0
function setup(thread)
   thread:set("thread_number", threads)
   threads = threads + 1
end

-- Park and Miller's minimal standard generator (CACM 31(10), 1988), exact in a double and the same in every Lua.
local state
local function uniform()
   state = (state * 16807) % 2147483647
   return state / 2147483647
end
local function below(bound) return math.floor(uniform() * bound) end

-- Small user numbers are popular, as in the data set's follow graph.
local function popular(users)
   local u = uniform()
   return math.floor(u * u * users)
end

local words = { "coffee", "train", "latency", "queue", "bridge", "river", "market", "morning", "kernel", "garden" }
local topics = { "weather", "jvm", "linux", "music", "football", "cats", "chess" }

local function text(users)
   local parts = {}
   for i = 1, 6 + below(10) do parts[i] = words[1 + below(#words)] end
   parts[#parts + 1] = "%23" .. topics[1 + below(#topics)]
   parts[#parts + 1] = "%40" .. popular(users)
   return table.concat(parts, "+")
end

local cycle = {}
local position = 0

function init(args)
   local seed = tonumber(args[1] or 1)
   local users = tonumber(args[2] or 3000)
   if not seed or not users then error("requests.lua: SEED and USERS must be numbers") end
   -- The state must lie in 1 .. 2^31 - 2; the first numbers after similar seeds are alike, so some are skipped.
   state = (seed * 7919 + thread_number * 104729) % 2147483646 + 1
   for _ = 1, 16 do uniform() end

   local form = { ["Content-Type"] = "application/x-www-form-urlencoded" }
   for i = 1, cycle_length do
      local kind = uniform()
      if kind < timelines then
         cycle[i] = wrk.format("GET", "/timeline/" .. popular(users) .. "?n=20")
      elseif kind < timelines + reads then
         cycle[i] = wrk.format("GET", "/tweets/" .. 1 + below(users * tweets_per_user))
      else
         cycle[i] = wrk.format("POST", "/tweets", form, "user=" .. popular(users) .. "&text=" .. text(users))
      end
   end
end

function request()
   position = position % cycle_length + 1
   return cycle[position]
end
