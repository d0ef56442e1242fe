"""The admin routes that show and reset what each key has used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from server.admission.limits.key_account import KeyAccount, KeyUsage
from server.http.entry.guard import ADMIN_PREFIX, GUARD
from server.http.transport.json_body import json_response
from server.startup.logs import log

USAGE, RESET_USAGE = ADMIN_PREFIX + "usage", ADMIN_PREFIX + "usage/reset"
# The names of OpenAI's usage API, and `num_refused_requests`: those beyond the limits of the key.
COUNTS = ("num_model_requests", "num_refused_requests", "input_tokens", "output_tokens", "input_cached_tokens")


def add_routes(app: web.Application) -> None:
    """Adds GET /admin/usage and POST /admin/usage/reset."""
    app.router.add_get(USAGE, show_usage)
    app.router.add_post(RESET_USAGE, reset_usage)


async def show_usage(request: web.Request) -> web.Response:
    """Shows the counts of each name since the start or the last reset."""
    return json_response(to_dict(accounts_of(request)))


async def reset_usage(request: web.Request) -> web.Response:
    """Begins all counts at zero; limits are not affected. The answer has the counts until now."""
    accounts = accounts_of(request)
    body = to_dict(accounts)
    reset(accounts)
    return json_response(body)


def accounts_of(request: web.Request) -> Sequence[KeyAccount]:
    """The accounts of the application's keys."""
    keys = request.app[GUARD].keys
    return () if keys is None else keys.accounts


def reset(accounts: Sequence[KeyAccount]) -> None:
    """Begins all counts at zero."""
    for account in accounts:
        account.usage = KeyUsage()
    log.info("admin", action="reset_usage")


def to_dict(accounts: Sequence[KeyAccount]) -> dict[str, Any]:
    """The body of the answer."""
    return {"object": "list", "data": [_account_to_dict(account) for account in accounts]}


def _account_to_dict(account: KeyAccount) -> dict[str, Any]:
    usage, limits = account.usage, account.limits
    counts = (
        usage.num_requests, usage.num_refused, usage.num_prompt_tokens, usage.num_completion_tokens,
        usage.num_cached_tokens,
    )  # fmt: skip
    return {
        "object": "key.usage",
        "name": account.name,
        **dict(zip(COUNTS, counts, strict=True)),
        "num_streams": account.num_streams,
        "limits": limits._asdict(),
    }
