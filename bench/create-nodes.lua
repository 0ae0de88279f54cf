-- wrk: POST 1,000 nodes that are Ready and large (500 by each of two threads), then read one of them for the rest of the time.
local token = os.getenv("TOKEN")
local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end
local resources = [[{"cpu":"32","memory":"256Gi","ephemeral-storage":"1Ti","pods":"250"}]]
local now = os.date("!%Y-%m-%dT%H:%M:%SZ")
local headers = { ["Authorization"] = "Bearer " .. token, ["Content-Type"] = "application/json" }
local count = 0
function request()
  count = count + 1
  if count > 500 then
    return wrk.format("GET", "/api/v1/nodes/n" .. id .. "-1", headers)
  end
  local name = "n" .. id .. "-" .. count
  local body = '{"apiVersion":"v1","kind":"Node","metadata":{"name":"' .. name .. '","labels":{"kubernetes.io/hostname":"' .. name
    .. '","topology.kubernetes.io/zone":"z' .. (count % 3) .. '"}},"status":{"capacity":' .. resources .. ',"allocatable":'
    .. resources .. ',"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"","lastHeartbeatTime":"'
    .. now .. '","lastTransitionTime":"' .. now .. '"}]}}'
  return wrk.format("POST", "/api/v1/nodes", headers, body)
end
