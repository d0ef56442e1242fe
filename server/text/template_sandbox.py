"""A jinja2 sandbox with limits on time and memory: chat templates come from untrusted model files."""

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial, update_wrapper, wraps
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, _PassArg
from jinja2.visitor import NodeTransformer

from server.text.template_limits import (
    MAX_WIDTH,
    MAX_WRAPPED,
    check_integers,
    check_method,
    check_percent,
    check_width,
    current_budget,
    num_found,
    refuse_width,
)

# Filters for web pages, which take more than linear time, and a global that makes text out of nothing.
_NOT_FOR_PROMPTS = ("pprint", "striptags", "urlize", "xmlattr")
_TAKES_ANY_NUMBER = frozenset(
    "d default float format int map reject rejectattr replace select selectattr sum truncate".split()
)
_NUMBERS = re.compile(r"[0-9]+")


def _join(separator: str, pieces: Iterable[Any]) -> str:
    budget, num_chars = current_budget(), 0
    texts: list[Any] = []
    for piece in pieces:
        num_chars += len(separator) + (len(piece) if type(piece) is str else budget.size(piece))
        if num_chars + len(texts) > budget.max_size:
            budget.check_size(num_chars + len(texts))
        texts.append(piece)
    budget.spend(num_chars)
    return separator.join(texts)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A sandbox whose templates run within a `TemplateBudget` and raise TemplateError beyond it."""

    intercepted_binops = frozenset(["+", "*", "**", "%", "/", "//"])

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        for name in _NOT_FOR_PROMPTS:
            del self.filters[name]
        del self.globals["lipsum"]
        for name, call in list(self.filters.items()):
            self.add_filter(name, call)
        self.filters |= {"_concat": _concat, "_each": _Each, "_weigh": _weigh}
        self.globals["namespace"] = _Namespace

    def add_filter(self, name: str, call: Callable[..., Any]) -> None:
        self.filters[name] = _bounded(name, call)

    concat = staticmethod(partial(_join, ""))  # of jinja2's buffers

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Guards().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Some templates append to lists of their own, which are plain ones."""
        return (attr == "append" and type(obj) is list) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget()
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # by far the most frequent
            budget.joins(len(left) + len(right))
            return left + right
        budget.tick()
        if isinstance(left, int) and isinstance(right, int):
            check_integers(budget, operator, left, right)
        else:
            match operator:
                case "*":
                    factor = left if isinstance(left, int) else right
                    other = right if isinstance(left, int) else left
                    if isinstance(factor, int) and not isinstance(other, float):
                        budget.check_size(max(factor, 0) * budget.size(other))
                case "%" if isinstance(left, str | bytes):
                    check_percent(budget, left, right)
                case "+":
                    num_chars = budget.size(left) + budget.size(right)
                    budget.check_size(num_chars)
                    result = super().call_binop(context, operator, left, right)
                    budget.joined(result, num_chars)
                    return result
        result = super().call_binop(context, operator, left, right)
        budget.built(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 has it
        budget = current_budget()
        budget.tick()
        budget.check_size(sum(map(budget.size, args)) + sum(map(budget.size, kwargs.values())))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | bytes):
            args = check_method(budget, owner, name, args, kwargs)
        elif isinstance(owner, int) or owner is int:
            check_width(*args, *kwargs.values())
        result = super().call(__context, __obj, *args, **kwargs)
        if name == "append" and isinstance(owner, list):
            budget.appended(owner, owner[-1])
        budget.built(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, takes_map = value.__self__, value.__name__ == "format_map"
        formatter = _Formatter(self)

        def call(*args: Any, **kwargs: Any) -> str:
            values, named = ((), *args) if takes_map else (args, kwargs)
            budget = current_budget()
            budget.check_size(len(text) + text.count("{") * (budget.size(values) + budget.size(named)))
            return str(formatter.vformat(text, values, named))

        return update_wrapper(call, value)


class _Guards(NodeTransformer):
    """Puts a filter around each part of a template that jinja2's sandbox does not intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        return self._literal(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        self.generic_visit(node)
        return _filtered(node, "_weigh") if isinstance(node.arg, nodes.Slice) and node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        return self._literal(node) if node.ctx == "load" else node

    def _literal(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        is_constant = all(isinstance(part, nodes.Const) for part in node.iter_child_nodes())
        return node if is_constant else _filtered(node, "_weigh")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


class _Namespace(Namespace):
    """A namespace without its values in its `repr`, because namespaces may contain one another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        current_budget().size(value)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Each:
    """The iterable of a `for` loop, which checks the time limit in each step."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        budget = current_budget()
        for item in self._iterable:
            budget.tick()
            yield item

    def __len__(self) -> int:
        if isinstance(self._iterable, Sized):
            return len(self._iterable)
        raise TypeError("the length of this is not known")


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if len(format_spec) > MAX_WIDTH:
            refuse_width()
        check_width(*map(int, _NUMBERS.findall(format_spec)))
        return super().format_field(value, format_spec)


@pass_context  # so that nothing is written before the template runs
def _finalize(context: Context, value: Any) -> Any:
    budget = current_budget()
    if isinstance(value, str):
        budget.tick()
        return value
    budget.size(value)  # before it is written
    text = str(value)
    budget.built(text)
    return text


def _weigh(value: Any) -> Any:
    current_budget().built(value)
    return value


def _concat(parts: list[Any]) -> str:
    return _join("", map(_text_of, parts))


def _text_of(value: Any) -> str:
    if not isinstance(value, str):
        current_budget().size(value)  # before it is written
    return str(value)


def _bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter in checks of the budget. With few exceptions its arguments are widths and counts."""
    wants = _PassArg.from_obj(call)

    @pass_context
    @wraps(call)
    def bounded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.tick()
        options = [*args, *kwargs.values()]
        if name not in _TAKES_ANY_NUMBER:
            check_width(*options)
        budget.check_size(budget.size(value) + sum(map(budget.size, options)))
        match name:
            case "format":
                check_percent(budget, value, args or kwargs)
            case "join":
                value = list(_Each(value))
                budget.check_size(budget.size(value) + len(value) * sum(map(budget.size, options)))
            case "replace" if isinstance(value, str) and len(options) >= 2:
                old, new, *_ = options
                budget.check_size(len(value) + num_found(value, old) * budget.size(new))
            case "indent" if isinstance(value, str):
                widths = [option if isinstance(option, int) else budget.size(option) for option in options]
                budget.check_size(len(value) + (value.count("\n") + 1) * max(widths, default=0))
            case "wordwrap" if len(str(value)) > MAX_WRAPPED:
                raise TemplateError(f"this is too much work: wordwrap is given more than {MAX_WRAPPED} characters")
            case "wordwrap" if isinstance(value, str):
                budget.check_size(len(value) * (1 + max(map(budget.size, options), default=0)))
            case "sum" if any(isinstance(option, list | tuple) for option in options):
                value = list(_Each(value))
                budget.check_size(len(value) * budget.size(value))
        match wants:
            case _PassArg.context:
                result = call(context, value, *args, **kwargs)
            case _PassArg.eval_context:
                result = call(context.eval_ctx, value, *args, **kwargs)
            case _PassArg.environment:
                result = call(context.environment, value, *args, **kwargs)
            case _:
                result = call(value, *args, **kwargs)
        budget.built(result)
        return result

    return bounded
