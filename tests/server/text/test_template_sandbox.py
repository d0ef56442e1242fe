"""What a hostile chat template tries: each attempt is one error, soon, and takes little memory."""

from __future__ import annotations

import time
import tracemalloc
from types import SimpleNamespace

import pytest

from server.text import chat_template, template_limits
from server.text.chat_template import MAX_SOURCE_CHARS, ChatTemplate, ChatTemplateError
from server.text.template_limits import TemplateTimeout, inline_template_limits

USER = {"role": "user", "content": "Hi"}
LIMIT_BYTES = 256 << 20  # several values of the largest size, with what Python needs beside them
DOUBLED = (
    "{% set n = namespace(x='ab' * 50) %}{% for i in range(40) %}{% set n.x = BODY %}{% endfor %}{{ n.x | length }}"
)

APPENDED = "{% set l = [] %}{% set s = 'a' * 1000000 %}{% for i in range(999) %}{% set _ = l.append(s) %}{% endfor %}"

HUGE = {
    "text": "{{ 'a' * 10 ** 9 }}",
    "text from the right": "{{ 10 ** 9 * 'a' }}",
    "list": "{{ ([0] * 10 ** 9) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power of a variable": "{% set x = 10 %}{{ x ** (x ** x) }}",
    "product": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x > 1 }}",
    "integer": "{{ ('0x' ~ 'f' * 100000) | int(0, 16) > 1 }}",
    "range": "{{ range(10 ** 9) | list }}",
    "concatenated": DOUBLED.replace("BODY", "n.x ~ n.x"),
    "added": DOUBLED.replace("BODY", "n.x + n.x"),
    "joined": DOUBLED.replace("BODY", "[n.x, n.x] | join"),
    "joined by a method": DOUBLED.replace("BODY", "n.x.join([n.x, n.x, n.x])"),
    "separated": DOUBLED.replace("BODY", "n.x | list | join(n.x)"),
    "replaced": DOUBLED.replace("BODY", "n.x | replace('a', n.x)"),
    "replaced by a method": DOUBLED.replace("BODY", "n.x.replace('', n.x)"),
    "formatted": DOUBLED.replace("BODY", "'%s%s' % (n.x, n.x)"),
    "formatted by a filter": DOUBLED.replace("BODY", "'%s%s' | format(n.x, n.x)"),
    "formatted by a method": DOUBLED.replace("BODY", "'{0}{0}'.format(n.x)"),
    "translated": DOUBLED.replace("BODY", "n.x.translate({97: n.x})"),
    "wrapped": DOUBLED.replace("BODY", "n.x | wordwrap(1, wrapstring=n.x)"),
    "blanks that are wrapped": "{{ (' ' * 900000) | wordwrap }}",
    "captured": "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set c %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% set n.x = c %}{% endfor %}",
    "centred": "{{ 'a' | center(10 ** 9) }}",
    "centred by a method": "{{ 'a'.center(10 ** 9) }}",
    "mapped": "{{ ['a'] | map('center', 10 ** 9) | list | length }}",
    "filled": "{{ 'a'.zfill(10 ** 9) }}",
    "indented": "{{ '\n\n' | indent(10 ** 9, blank=true) }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(10 ** 9) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "width of a value": "{{ '%*d' % (10 ** 9, 1) }}",
    "width in braces": "{{ '{:1000000000}'.format(1) }}",
    "nested width in braces": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "slices": "{{ [1] | slice(10 ** 9) | list | length }}",
    "batches": "{{ [1] | batch(10 ** 9, 0) | list | length }}",
    "rounded": "{{ 2.5 | round(10 ** 9) }}",
    "as JSON": "{{ [[[[1]]]] | tojson(indent=10 ** 9) }}",
    "JSON with long separators": "{{ ([1] * 9000) | tojson(separators=('ab' * 10000, ':')) }}",
    "lists in lists": DOUBLED.replace("BODY", "[n.x, n.x]").replace("n.x | length", "n.x"),
    "tuples in tuples": DOUBLED.replace("BODY", "(n.x, n.x)").replace("n.x | length", "n.x == n.x"),
    "dicts in dicts": DOUBLED.replace("BODY", "{1: n.x, 2: n.x}").replace("n.x | length", "n.x | tojson"),
    "views of dicts": DOUBLED.replace("BODY", "{1: n.x, 2: n.x}.items()").replace("n.x | length", "n.x"),
    "arguments": "{% set n = namespace(x=1) %}{% macro f() %}{% set n.x = varargs %}{% endmacro %}"
    "{% for i in range(40) %}{{ f(n.x, n.x) }}{% endfor %}{{ n.x }}",
    "written often": "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "written lists": "{% set x = ['abc' * 500] * 50 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "loops in a macro": "{% set x = 'a' * 1000000 %}{% macro f() %}{% for i in range(100000) %}{{ x }}{% endfor %}"
    "{% endmacro %}{{ f() }}",
    "appended, written": APPENDED + "{{ l }}",
    "appended, as JSON": APPENDED + "{{ l | tojson }}",
    "appended, by a filter": APPENDED + "{{ l | upper }}",
    "appended, concatenated": APPENDED + "{{ 'a' ~ l }}",
    "appended to what was written": "{% set l = [] %}{{ l }}" + APPENDED.removeprefix("{% set l = [] %}") + "{{ l }}",
    "appended to what is in a list": "{% set l = [] %}{% set k = [[l]] %}{{ k }}"
    + APPENDED.removeprefix("{% set l = [] %}")
    + "{{ k }}",
    "appended twice": DOUBLED.replace("BODY", "twice").replace(
        "{% set n.x = twice %}",
        "{% set m = [] %}{% set _ = m.append(n.x) %}{% set _ = m.append(n.x) %}{% set n.x = m %}",
    ),
    "appended parts": "{% set l = [] %}{% set s = 'a' * 1000000 %}{% for i in range(9999) %}"
    "{% set _ = l.append(s[1:]) %}{% endfor %}",
    "summed lists": "{{ ([[1, 2]] * 9000) | sum(start=[]) | length }}",
    "found backwards": "{{ ('a' * 4000000).rfind('b' + 'a' * 2000000) }}",
    "stripped": "{{ ('a' * 4000000).strip('b' * 2000000 + 'a') }}",
}


@pytest.mark.parametrize("name", HUGE)
def test_what_is_huge_is_refused_before_it_is_built(name: str) -> None:
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match=r"^the chat template (says: this is too much work|fails)"):
            ChatTemplate(HUGE[name]).render([USER])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LIMIT_BYTES
    assert time.process_time() - begin < 5.0


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for a in [9] * 9 recursive %}{{ loop([9] * 9) if loop.depth < 60 }}{% endfor %}",
    "in a list of many": "{% for a in range(99999) %}{% if [1] * 1000 == 2 %}{% endif %}{% endfor %}" * 9,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_runs_for_long_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.05)
    with (
        pytest.raises(ChatTemplateError, match=r"it runs for more than 0.05 s, the limit"),
        inline_template_limits(0.05),
    ):
        ChatTemplate(ENDLESS[name]).render([USER])


def test_a_thread_that_cannot_wait_learns_that_it_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the thread gets less of a processor than a template that computes all the time.
    computed = iter((0.0, 0.1))
    monkeypatch.setattr(chat_template, "time", SimpleNamespace(thread_time=lambda: next(computed)))
    template = ChatTemplate(ENDLESS["loops"])
    assert not template.is_slow
    with pytest.raises(TemplateTimeout), inline_template_limits(0.1):
        template.render([USER])
    assert template.is_slow


def test_a_template_is_not_slow_because_its_thread_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    # A collection of garbage may fall into it, and it computes for longer than this template.
    computed = iter((0.0, 0.001))
    monkeypatch.setattr(chat_template, "time", SimpleNamespace(thread_time=lambda: next(computed)))
    template = ChatTemplate("{{ wait(0.03) }}{{ wait(0) }}")
    with pytest.raises(TemplateTimeout), inline_template_limits(0.02):
        template.render([USER], wait=time.sleep)
    assert not template.is_slow


@pytest.mark.parametrize(
    "expression",
    [
        "('é' * 900000).encode('ascii', 'xmlcharrefreplace')",
        "('é' * 900000).encode(errors='namereplace', encoding='ascii')",
        "('é' * 900000).encode('punycode')",
        "('a' * 900000).encode().decode('idna')",
        "(('<!---->' * 100000) | safe).striptags()",
    ],
)
def test_methods_that_take_long_without_a_pause_are_refused(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(ChatTemplateError, match="for prompts"):
        ChatTemplate("{{ " + expression + " }}").render([USER])
    assert time.process_time() - began < 1.0


def test_a_source_has_a_longest_length() -> None:
    with pytest.raises(ChatTemplateError, match="the limit is 131072"):
        ChatTemplate("a" * (MAX_SOURCE_CHARS + 1))


def test_nothing_is_computed_before_the_template_runs() -> None:
    for expression in ("'a' * 10 ** 12", "10 ** (10 ** 10)", "'a' | center(10 ** 12)", "['a'] * 10 ** 12"):
        ChatTemplate("{% if false %}{{ " + expression + " }}{% endif %}")


def test_namespaces_in_namespaces_are_not_written() -> None:
    source = "{% set n = namespace(x=1) %}{% for i in range(40) %}{% set m = namespace(x=n.x) %}"
    source += "{% set n.x = [m, m] %}{% endfor %}{{ n.x }}"
    assert ChatTemplate(source).render([USER]) == "[<Namespace>, <Namespace>]"


def test_refusals_and_failures_are_told_briefly() -> None:
    with pytest.raises(ChatTemplateError) as raised:
        ChatTemplate("{{ raise_exception('no' * 100000) }}").render([USER])
    assert len(str(raised.value)) < 2000


def test_long_conversations_are_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 600
    accumulated = (
        "{% set n = namespace(text='', kept=[]) %}{% for m in messages %}{% set n.text = n.text + m.content %}"
        "{% set n.kept = n.kept + [m] %}{% endfor %}{{ n.text }}{{ n.kept | length }}"
    )
    assert ChatTemplate(accumulated).render(messages) == "word " * 200 * 600 + "600"
    plain = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim }}{{ loop.length if loop.last }}{% endfor %}"
    assert ChatTemplate(plain).render(messages).endswith("word600")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%s is %05.1f' % ('x', 2.5) }}", "x is 002.5"),
        ("{{ '%d tokens' | format(100000) }}", "100000 tokens"),
        ("{{ '{:>5}|{a}'.format(7, a='b') }}", "    7|b"),
        ("{{ '{a}'.format_map({'a': 1}) }}", "1"),
        ("{{ ', '.join(messages | map(attribute='role')) }}", "user"),
        ("{{ [3, 1, 2] | sort | join('-') }}", "1-2-3"),
        ("{{ [[1], [2]] | sum(start=[]) }}", "[1, 2]"),
        ("{{ 'a\nb' | indent(2, first=true) }}", "  a\n  b"),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ 'text' | truncate(50000) }}", "text"),
        ("{{ 'a b' | wordwrap(1) }}{{ 'é'.encode().decode('utf-8') }}{{ 'abc'[1:] }}{{ [1, 2][:1] }}", "a\nbébc[1]"),
        (
            "{% set l = [] %}{% for m in messages %}{% set _ = l.append(m.role) %}{{ l }}{% endfor %}{{ l | join }}",
            "['user']user",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for x in missing %}no{% endfor %}", "a1"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% filter upper %}a{% endfilter %}{{ none }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ 'ab' * 2 }}", "ANone31024abab"),
    ],
)
def test_ordinary_templates_are_as_they_were(source: str, text: str) -> None:
    assert ChatTemplate(source).render([USER]) == text
