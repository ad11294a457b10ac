"""The price book: purchase prices, power, and what a site pays, each figure with its source.

The catalog's own book is `data/prices.yaml`. A book of one's own has the same form, holds only what differs, and
needs no sources. Prices are float units of one currency, power is watts, electricity is currency a kilowatt-hour.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.nested import laid_over
from fabrictwin.base.units import Duration, Rate
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import Lines, read_yaml, read_yaml_file
from fabrictwin.catalog.answers import names, sources
from fabrictwin.catalog.entry_kinds import figures
from fabrictwin.catalog.failures import FailureRate
from fabrictwin.catalog.failures import Rate as Interruptions
from fabrictwin.catalog.figures import Figure, Model
from fabrictwin.catalog.quantities import Count, Ratio, Watts

COUNTED = ("GPU", "host", "switch", "cable", "job")  # devices that a bill of materials counts
OWN = "your price book"  # source of figures in a book that is not the catalog's
_MONEY = re.compile(r"\s*(\d[\d,_ ]*(?:\.\d+)?)\s*([A-Z]{3})(/kWh)?\s*\Z")


class Money(NamedTuple):
    """An amount of a currency."""

    amount: float
    currency: str


def _money(value: object, *, energy: bool) -> Money:
    example = "0.08 USD/kWh" if energy else "36,000 USD"
    if isinstance(value, Money):
        return value
    match = _MONEY.match(value) if isinstance(value, str) else None
    if match is None or bool(match[3]) != energy:
        what = "a price of electricity" if energy else "a price with its currency"
        raise ValueError(f"got {value!r}, expected {what}, such as {example!r}")
    return Money(float(re.sub(r"[,_ ]", "", match[1])), match[2])


_TEXT = PlainSerializer(lambda m: f"{m.amount:g} {m.currency}", return_type=str)
Price = Annotated[Money, BeforeValidator(lambda v: _money(v, energy=False), json_schema_input_type=str), _TEXT]
Tariff = Annotated[Money, BeforeValidator(lambda v: _money(v, energy=True), json_schema_input_type=str), _TEXT]


class Device(Model):
    """A host or a switch: what it costs, between which prices that lies, and its power at most."""

    price: Figure[Price]
    low: Figure[Price] | None = None
    high: Figure[Price] | None = None
    power: Figure[Watts]


class CableRow(Model):
    """A link of one medium up to a rate: both ends and the run between them."""

    rate: Rate
    link: Figure[Price]
    power: Figure[Watts]


class Site(Model):
    """What running costs, beside the equipment."""

    electricity: Figure[Tariff]
    overhead: Figure[Ratio]  # watts drawn by the site for one of equipment (PUE)
    draw: Figure[Ratio]  # mean power of hosts in use, of their maximum
    upkeep: Figure[Ratio]  # a year, of the purchase
    interruptions: Figure[Interruptions]  # of a job, by its GPUs
    lost: Figure[Duration]  # time that a job does not train after one


class Role(Model):
    """People of one kind: what one is paid a year, and the GPUs that one looks after."""

    pay: Figure[Price]
    looks_after: Figure[Count]


class PriceBook(Model):
    """Everything by its catalog name."""

    hosts: dict[str, Device] = Field(default_factory=dict)
    switches: dict[str, Device] = Field(default_factory=dict)
    cables: dict[str, tuple[CableRow, ...]] = Field(default_factory=dict)
    site: Site
    people: dict[str, Role] = Field(default_factory=dict)

    @property
    def currency(self) -> str:
        return self.site.electricity.value.currency

    def cable(self, medium: str, rate_bps: int) -> tuple[float, float, CableRow]:
        """(price, watts, the row they come from) of one link."""
        rows = self.cables[medium]
        for row in rows:
            if rate_bps <= row.rate:
                return row.link.value.amount, float(row.power.value), row
        times = rate_bps / rows[-1].rate
        return rows[-1].link.value.amount * times, rows[-1].power.value * times, rows[-1]


_SECTIONS = {"hosts": "host", "switches": "switch", "cables": "cable"}


def _sourced(raw: Any) -> Any:
    """A figure of one's own: its source is the book."""
    if isinstance(raw, str):
        return {"value": raw, "source": OWN}
    if isinstance(raw, dict):
        if "value" in raw:
            return {"source": OWN, **raw}
        return {key: _sourced(value) for key, value in raw.items()}
    if isinstance(raw, list):
        return [
            {k: v if k == "rate" else _sourced(v) for k, v in row.items()} if isinstance(row, dict) else row
            for row in raw
        ]
    return raw


def _check(data: Any, lines: Lines, file: str | Path, *, complete: bool) -> None:
    if not isinstance(data, dict):
        raise ConfigError("expected a price book: hosts, switches, cables, site, people", file=file, line=1)
    for section, kind in _SECTIONS.items():
        entries = data.get(section)
        if entries is None:
            continue
        if not isinstance(entries, dict):
            raise ConfigError(
                f"got {entries!r}, expected entries by name", file=file, line=lines[(section,)], key=section
            )
        for name in entries:
            if name not in names(kind):
                hint = did_you_mean(str(name), names(kind))
                raise ConfigError(
                    f"got {name!r}, expected the name of a {kind} in the catalog{hint}",
                    file=file,
                    line=lines[(section, name)],
                    key=f"{section}.{name}",
                )
    if complete and "site" not in data:
        raise ConfigError("expected a section site", file=file, line=1)


def read_book(text_of: dict[str, Any], lines: Lines, file: str | Path) -> PriceBook:
    """A whole book from plain data. Raises ConfigError with file, line and key."""
    try:
        book = PriceBook.model_validate(text_of)
    except ValidationError as error:
        raise config_errors(error, PriceBook, data=text_of, file=file, lines=lines)[0] from None
    for key, figure in figures(book):
        if figure.source != OWN and figure.source not in sources():
            raise ConfigError(f"got source {figure.source!r}, expected a key of sources.yaml", file=file, key=key)
        value = getattr(figure, "value", None)
        if isinstance(value, Money) and value.currency != book.currency:
            raise ConfigError(
                f"got {value.currency}, expected {book.currency} as the price of electricity has",
                file=file,
                key=key,
            )
        if key.endswith(".looks_after") and not value:
            raise ConfigError(f"got {value}, expected at least one GPU", file=file, key=key)
        if isinstance(value, FailureRate) and value.device not in COUNTED:
            raise ConfigError(
                f"got {value.device}-days, expected days of one of {', '.join(COUNTED)}",
                file=file,
                key=key,
            )
        if isinstance(value, Fraction) and value < 0:
            raise ConfigError(f"got {float(value):g}, expected nothing below 0", file=file, key=key)
    return book


@cache
def _catalog() -> tuple[dict[str, Any], Lines]:
    text = resources.files("fabrictwin.catalog").joinpath("data", "prices.yaml").read_text(encoding="utf-8")
    data, lines = read_yaml(text, "prices.yaml")
    _check(data, lines, "prices.yaml", complete=True)
    return data, lines


def price_book(path: str | Path | None = None) -> PriceBook:
    """The catalog's book, with a book of one's own over it. Raises ConfigError."""
    data, lines = _catalog()
    if path is None:
        return read_book(data, lines, "prices.yaml")
    own, own_lines = read_yaml_file(path)
    _check(own, own_lines, path, complete=False)
    return read_book(laid_over(data, _sourced(own)), own_lines, path)
