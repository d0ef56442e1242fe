"""The account of a key whose limits change while it is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.admission.limits import key_account
from server.admission.limits.key_account import KeyAccount
from server.admission.limits.key_limits import NO_LIMITS, KeyLimits
from server.admission.limits.token_bucket import TokenBucket


@pytest.mark.parametrize(
    "use",
    [KeyAccount.begin_request, lambda account: account.reserve(5), lambda account: account.charge(5)],
    ids=["begin_request", "reserve", "charge"],
)
def test_limits_that_another_thread_takes_away_break_no_request(
    use: Callable[[KeyAccount], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class TakenAway(TokenBucket):
        @property
        def remaining(self) -> float:
            account.set_limits(NO_LIMITS)
            return super().remaining

    monkeypatch.setattr(key_account, "TokenBucket", TakenAway)
    account = KeyAccount("ann", KeyLimits(10, 2, 1000))
    use(account)
    assert account.headers() == {}
