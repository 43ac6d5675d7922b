"""SQL of pages and counts."""

from collections.abc import Callable, Iterable

from refold.console.sql.statements import Statements, escaped
from refold.core.tables import Scalar, ViewTable
from refold.engine.ports.tables import Query, Where

_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


Statement = tuple[str, tuple[Scalar, ...]]


def page(query: Query, statements: Callable[[ViewTable], Statements]) -> Statement:
    of = statements(query.table)
    conditions, arguments = _where(query, statements)
    sorting = [f'"{name}"' for name in query.sorting]
    if query.after:
        marks = ", ".join([of.mark] * len(sorting))
        conditions.append(f"({', '.join(sorting)}) {'<' if query.descending else '>'} ({marks})")
        arguments += query.after
    order = ", ".join(f"{name} desc" if query.descending else name for name in sorting)
    return f"{of.select}{_all(conditions)} order by {order} limit {query.limit:d}", _named(arguments)


def counts_of(query: Query, by: Iterable[str], statements: Callable[[ViewTable], Statements]) -> Statement:
    conditions, arguments = _where(query, statements)
    columns = ", ".join(f'"{name}"' for name in by)
    chosen, grouped = (f"{columns}, ", f" group by {columns}") if columns else ("", "")
    counted = f'select {chosen}count(*) from "{statements(query.table).name}"{_all(conditions)}{grouped}'
    return counted, _named(arguments)


def _where(query: Query, statements: Callable[[ViewTable], Statements]) -> tuple[list[str], list[Scalar]]:
    mark, arguments = statements(query.table).mark, list[Scalar]()
    conditions = _conditions(query.where, mark, arguments)
    for within in query.within:
        other = statements(within.table)
        inner = _all(_conditions(within.where, mark, arguments))
        test = "not in" if within.absent else "in"
        conditions.append(f'"run_id" {test} (select "run_id" from "{other.name}"{inner})')
    return conditions, arguments


def _all(conditions: list[str]) -> str:
    return f" where {' and '.join(conditions)}" if conditions else ""


def _named(arguments: list[Scalar]) -> tuple[Scalar, ...]:
    places = [place for place, value in enumerate(arguments) if isinstance(value, str)]
    ((*named,),) = escaped([tuple(arguments)], places)
    return tuple(named)


def _conditions(where: tuple[Where, ...], mark: str, arguments: list[Scalar]) -> list[str]:
    conditions = []
    for column, test, value in where:
        names = column.split()
        if test == "contains":
            value = f"%{str(value).lower().translate(_LIKE)}%"
            either = (f"lower(\"{name}\") like {mark} escape '\\'" for name in names)
        else:
            either = (f'"{name}" {test} {mark}' for name in names)
        arguments += [value] * len(names)
        conditions.append(f"({' or '.join(either)})")
    return conditions
