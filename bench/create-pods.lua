-- wrk: create pods with names of their own in the namespace NS, with the bearer token TOKEN. FORM says how: `json` (the usual)
-- and `protobuf` are a POST, `apply` a server-side apply. SCHEDULER names who is to place them; nobody does by default. WHOLE, if
-- set, gives pods in JSON all that admission would add to them.
local token = os.getenv("TOKEN")
local form = os.getenv("FORM") or "json"
local scheduler = os.getenv("SCHEDULER") or "nobody"
local whole = os.getenv("WHOLE")
local path = "/api/v1/namespaces/" .. os.getenv("NS") .. "/pods"
local media = {
  json = "application/json",
  protobuf = "application/vnd.kubernetes.protobuf",
  apply = "application/apply-patch+yaml",
}
-- Each form makes pods of its own, so that the forms may follow each other in one namespace.
local prefix = { json = "p", protobuf = "b", apply = "a" }
local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end

-- What the default plugins add: the account and its token's volume, its mount, the priority, and how long failing nodes are borne.
local function added()
  if not whole then
    return { mount = "", fields = "", volume = "" }
  end
  local token_name = "kube-api-access-bench"
  local function bears(taint)
    return '{"key":"node.kubernetes.io/' .. taint .. '","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}'
  end
  return {
    mount = ',{"name":"' .. token_name .. '","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}',
    fields = '"serviceAccountName":"default","serviceAccount":"default","priority":0,"preemptionPolicy":"PreemptLowerPriority",'
      .. '"tolerations":[' .. bears("not-ready") .. "," .. bears("unreachable") .. "],",
    volume = ',{"name":"' .. token_name .. '","projected":{"defaultMode":420,"sources":['
      .. '{"serviceAccountToken":{"path":"token","expirationSeconds":3607}},'
      .. '{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},'
      .. '{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}]}}',
  }
end

local function spec()
  local more = added()
  return [["spec":{"schedulerName":"]] .. scheduler .. [[","containers":[{"name":"app","image":"registry.example/app:1.0",]]
    .. [["command":["/bin/app","--verbose"],"env":[{"name":"MODE","value":"fast"},{"name":"SELF","valueFrom":]]
    .. [[{"fieldRef":{"fieldPath":"metadata.name"}}}],"ports":[{"name":"http","containerPort":8080}],]]
    .. [["resources":{"requests":{"cpu":"50m","memory":"64Mi"},"limits":{"memory":"128Mi"}},]]
    .. [["readinessProbe":{"httpGet":{"path":"/ready","port":8080}},"volumeMounts":[{"name":"tmp","mountPath":"/tmp"}]] .. more.mount
    .. "]}]," .. more.fields .. [["volumes":[{"name":"tmp","emptyDir":{}}]] .. more.volume .. "]}"
end

-- Protobuf, as far as a pod needs it: a number, and a field of text or of another message.
local function varint(n)
  local out = ""
  while n >= 128 do
    out = out .. string.char(n % 128 + 128)
    n = math.floor(n / 128)
  end
  return out .. string.char(n)
end
local function number(field, n)
  return varint(field * 8) .. varint(n)
end
local function message(field, ...)
  local body = table.concat({ ... })
  return varint(field * 8 + 2) .. varint(#body) .. body
end
local function entry(field, key, value)
  return message(field, message(1, key), value)
end
local function quantity(field, key, text)
  return entry(field, key, message(2, message(1, text)))
end
-- The same spec; the numbers are those of `k8s.io/api/core/v1/generated.proto`.
local function proto_spec()
  local env = message(7, message(1, "MODE"), message(2, "fast"))
    .. message(7, message(1, "SELF"), message(3, message(1, message(2, "metadata.name"))))
  local resources = message(8, quantity(1, "memory", "128Mi"), quantity(2, "cpu", "50m"), quantity(2, "memory", "64Mi"))
  local probe = message(11, message(1, message(2, message(1, "/ready"), message(2, number(1, 0), number(2, 8080)))))
  local container = message(2, message(1, "app"), message(2, "registry.example/app:1.0"), message(3, "/bin/app"),
    message(3, "--verbose"), message(6, message(1, "http"), number(3, 8080)), env, resources,
    message(9, message(1, "tmp"), message(3, "/tmp")), probe)
  local volume = message(1, message(1, "tmp"), message(2, message(2)))
  return message(2, volume, container, message(19, scheduler))
end
local function proto_pod(name, shard)
  local metadata = message(1, message(1, name), entry(11, "app", message(2, "bench")), entry(11, "shard", message(2, shard)))
  local kind = message(1, message(1, "v1"), message(2, "Pod"))
  return "k8s\0" .. kind .. message(2, metadata, proto_tail)
end

function init()
  count = 0
  tail = spec() .. "}"
  proto_tail = proto_spec()
end
function request()
  count = count + 1
  local name = prefix[form] .. id .. "-" .. count
  local shard = "s" .. (count % 40)
  local headers = { ["Authorization"] = "Bearer " .. token, ["Content-Type"] = media[form] }
  if form == "protobuf" then
    headers["Accept"] = media.protobuf
    return wrk.format("POST", path, headers, proto_pod(name, shard))
  end
  local body = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"' .. name .. '","labels":{"app":"bench","shard":"' .. shard
    .. '"}},' .. tail
  if form == "apply" then
    return wrk.format("PATCH", path .. "/" .. name .. "?fieldManager=bench", headers, body)
  end
  return wrk.format("POST", path, headers, body)
end
response = require("refusals")(201)
