-- For wrk: posts the body in $BODY and checks that every answer has err_no 0 and $EXPECT as its one number.
wrk.method = "POST"
wrk.body = os.getenv("BODY")
wrk.headers["Content-Type"] = "application/json"
local expect = tonumber(os.getenv("EXPECT"))
local threads = {}

function setup(thread) table.insert(threads, thread) end

function init() bad = 0 end

function response(status, _, body)
  local number = tonumber(body:match('"value":%s*%["%[%[([-%d.e]+)%]%]"%]'))
  if status ~= 200 or not body:find('"err_no":%s*0[,}]') or not number or math.abs(number - expect) > 1e-4 then
    bad = bad + 1
    if bad == 1 then io.stderr:write("unexpected answer: ", status, " ", body, "\n") end
  end
end

function done(summary, latency)
  local wrong = 0
  for _, thread in ipairs(threads) do wrong = wrong + thread:get("bad") end
  local lost = summary.errors
  wrong = wrong + lost.connect + lost.read + lost.write + lost.status + lost.timeout
  io.write(string.format('\n{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "bad": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, wrong))
end
