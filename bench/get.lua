-- wrk: GET the path TARGET with the bearer token TOKEN.
wrk.headers["Authorization"] = "Bearer " .. os.getenv("TOKEN")
wrk.headers["Accept"] = os.getenv("ACCEPT") or "application/json"
wrk.path = os.getenv("TARGET")
