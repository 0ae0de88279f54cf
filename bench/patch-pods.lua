-- wrk: PATCH pods that create-pods.lua made in the namespace NS, with the bearer token TOKEN. FORM says how: `status` is a
-- strategic merge of a status as a kubelet writes it, `merge` a merge patch of one annotation, `apply` a server-side apply,
-- and `update` a PUT of the status, whose spec the server leaves as it is.
-- Each thread goes over 500 pods of its own, from the second on: wrk asks each script once for a request that it never sends.
local token = os.getenv("TOKEN")
local form = os.getenv("FORM")
local path = "/api/v1/namespaces/" .. os.getenv("NS") .. "/pods/"
local media = {
  status = "application/strategic-merge-patch+json",
  merge = "application/merge-patch+json",
  apply = "application/apply-patch+yaml",
  update = "application/json",
}
local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end
local function status(n)
  return [[{"status":{"phase":"Running","podIP":"10.42.0.7","podIPs":[{"ip":"10.42.0.7"}],"startTime":"2026-01-01T00:00:00Z",]]
    .. [["conditions":[{"type":"Ready","status":"]] .. (n % 2 == 0 and "True" or "False")
    .. [[","lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"Initialized","status":"True"},{"type":"ContainersReady","status":"True"}],]]
    .. [["containerStatuses":[{"name":"app","ready":true,"restartCount":]] .. n
    .. [[,"image":"registry.example/app:1.0","imageID":"sha256:0","started":true,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}]]
end
function init()
  count = 0
end
function request()
  count = count + 1
  local name = "p" .. id .. "-" .. (count % 500 + 2)
  local target, body, method = path .. name, "", "PATCH"
  if form == "status" then
    target, body = target .. "/status", status(count)
  elseif form == "update" then
    method, target = "PUT", target .. "/status"
    body = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"' .. name .. '"},' .. status(count):sub(2)
  elseif form == "merge" then
    body = '{"metadata":{"annotations":{"bench/turn":"' .. count .. '"}}}'
  else
    target = target .. "?fieldManager=bench&force=true"
    body = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"' .. name .. '","annotations":{"bench/applied":"' .. count .. '"}}}'
  end
  return wrk.format(method, target, { ["Authorization"] = "Bearer " .. token, ["Content-Type"] = media[form] }, body)
end
response = require("refusals")(200)
