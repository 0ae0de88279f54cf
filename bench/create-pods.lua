-- wrk: POST pods with names of their own into the namespace NS, with the bearer token TOKEN. SCHEDULER names who is to
-- place them; nobody does by default.
local token = os.getenv("TOKEN")
local path = "/api/v1/namespaces/" .. os.getenv("NS") .. "/pods"
local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end
local function spec()
  return [["spec":{"schedulerName":"]] .. (os.getenv("SCHEDULER") or "nobody") .. [[","containers":[{"name":"app","image":"registry.example/app:1.0",]]
    .. [["command":["/bin/app","--verbose"],"env":[{"name":"MODE","value":"fast"},{"name":"SELF","valueFrom":]]
    .. [[{"fieldRef":{"fieldPath":"metadata.name"}}}],"ports":[{"name":"http","containerPort":8080}],]]
    .. [["resources":{"requests":{"cpu":"50m","memory":"64Mi"},"limits":{"memory":"128Mi"}},]]
    .. [["readinessProbe":{"httpGet":{"path":"/ready","port":8080}},"volumeMounts":[{"name":"tmp","mountPath":"/tmp"}]}],]]
    .. [["volumes":[{"name":"tmp","emptyDir":{}}]}]]
end
function init()
  count = 0
  tail = spec() .. "}"
end
function request()
  count = count + 1
  local name = "p" .. id .. "-" .. count
  local head = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"' .. name .. '","labels":{"app":"bench","shard":"s'
    .. (count % 40) .. '"}},'
  return wrk.format("POST", path, { ["Authorization"] = "Bearer " .. token, ["Content-Type"] = "application/json" }, head .. tail)
end
local refused = 0
function response(status, _, body)
  if status ~= 201 then
    refused = refused + 1
    if refused <= 2 then print("refused: " .. status .. " " .. body) end
  end
end
