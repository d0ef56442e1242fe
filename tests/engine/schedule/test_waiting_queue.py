"""The order in which waiting requests start: priority, fair shares, arrival."""

from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.request import Request
from engine.schedule.waiting_queue import OUTPUT_WEIGHT, WaitingQueue
from sampling.host.params import SamplingParams

PARAMS = SamplingParams(max_tokens=10)


def request(arrival, tenant="", priority=0, num_tokens=10):
    made = Request(f"r{arrival}", [1] * num_tokens, PARAMS, seed=0, max_length=100, priority=priority, arrival=arrival)
    made.tenant = tenant
    return made


def start(queue, running=()):
    """Starts the first candidate, as the scheduler does."""
    chosen = next(queue.candidates(running))
    queue.remove(chosen)
    queue.charge(chosen.tenant, num_prompt_tokens=chosen.num_prompt_tokens)
    return chosen


@given(st.lists(st.integers(-2, 2), max_size=20))
def test_a_single_tenant_has_priority_and_arrival(priorities):
    queue = WaitingQueue()
    requests = [request(arrival, priority=priority) for arrival, priority in enumerate(priorities)]
    for waiting in requests:
        queue.add(waiting)
    assert list(queue.candidates(())) == sorted(requests, key=lambda waiting: waiting.order)
    assert len(queue) == len(requests)


def test_a_thousand_requests_of_one_do_not_starve_another():
    queue = WaitingQueue()
    for arrival in range(1000):
        queue.add(request(arrival, "many"))
    for _ in range(50):
        start(queue)
    queue.add(request(1000, "one"))
    assert "one" in {start(queue).tenant, start(queue).tenant}


def test_equal_demand_gets_equal_tokens_whatever_the_sizes():
    queue, served = WaitingQueue(), {"long": 0, "short": 0}
    for arrival in range(2000):
        tenant = ("long", "short")[arrival % 2]
        queue.add(request(arrival, tenant, num_tokens={"long": 100, "short": 10}[tenant]))
    for _ in range(500):
        chosen = start(queue)
        served[chosen.tenant] += chosen.num_prompt_tokens
    assert abs(served["long"] - served["short"]) <= 110


def test_output_counts_while_it_runs_and_when_it_has_been_charged():
    queue = WaitingQueue()
    running = request(0, "talker")
    queue.add(running)
    start(queue)
    queue.add(request(1, "talker", num_tokens=1), [running])
    queue.add(request(2, "quiet", num_tokens=1), [running])
    running.token_ids += [5] * 50
    assert next(queue.candidates([running])).tenant == "quiet"
    queue.charge("talker", num_output_tokens=50)
    assert next(queue.candidates(())).tenant == "quiet"
    queue.charge("quiet", num_prompt_tokens=50 * OUTPUT_WEIGHT + 1)
    assert next(queue.candidates(())).tenant == "talker"


def test_priority_goes_before_fairness():
    queue = WaitingQueue()
    queue.charge("greedy", num_prompt_tokens=10**6)
    queue.add(request(0, "modest"))
    queue.add(request(1, "greedy", priority=-1))
    assert start(queue).tenant == "greedy"


def test_a_pause_saves_up_no_claim():
    queue = WaitingQueue()
    for arrival in range(200):
        queue.add(request(arrival, "steady"))
    for _ in range(100):
        start(queue)
    for arrival in range(200, 300):
        queue.add(request(arrival, "late"))
    tenants = [start(queue).tenant for _ in range(20)]
    assert 8 <= tenants.count("late") <= 12


def test_a_pause_saves_up_no_claim_over_one_that_pauses_too():
    queue = WaitingQueue()
    for arrival in range(100):
        queue.add(request(arrival, "steady"))
        start(queue)
    for arrival in range(100, 300):
        queue.add(request(arrival, "late"))
    for arrival in range(300, 500):
        queue.add(request(arrival, "steady"))
    tenants = [start(queue).tenant for _ in range(20)]
    assert 8 <= tenants.count("late") <= 12


TENANTS = st.sampled_from("abc")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TENANTS, st.integers(-1, 1), st.integers(1, 30)),
        st.tuples(st.just("start"), st.integers(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_against_a_plain_list(actions):
    """Every request is given once, and none before another that every rule puts first."""
    queue, waiting = WaitingQueue(), []
    for arrival, (kind, *rest) in enumerate(actions):
        match kind:
            case "add":
                tenant, priority, num_tokens = rest
                made = request(arrival, tenant, priority, num_tokens)
                queue.add(made)
                waiting.append(made)
            case "start":
                skipped = rest[0]
                given_out = []
                for chosen in queue.candidates(()):
                    given_out.append(chosen)
                    if len(given_out) > skipped:
                        queue.remove(chosen)
                        queue.charge(chosen.tenant, num_prompt_tokens=chosen.num_prompt_tokens)
                        waiting.remove(chosen)
                        break
                assert len(set(map(id, given_out))) == len(given_out)
                for tenant in "abc":
                    own = [one for one in given_out if one.tenant == tenant]
                    assert own == sorted(own, key=lambda one: one.order)
                if given_out and skipped == 0:
                    assert given_out[0].priority == min(one.priority for one in (*waiting, given_out[0]))
            case "abort":
                if waiting:
                    queue.remove(waiting.pop(rest[0] % len(waiting)))
        assert len(queue) == len(waiting)
        assert set(map(id, queue)) == set(map(id, waiting))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(1, 50)), max_size=20))
def test_the_forecast_is_the_order_in_which_they_start(wishes):
    queue = WaitingQueue()
    for arrival, (tenant, priority, num_tokens) in enumerate(wishes):
        queue.add(request(arrival, tenant, priority, num_tokens))
    forecast = list(queue.forecast(()))
    assert forecast == [start(queue) for _ in wishes]
