"""The short forms of the YAML: collections in three spellings, bindings and shovels in a line."""

from __future__ import annotations

import re
from typing import NamedTuple

from broker_client.config.tree import Items, Section, Spot, joined
from broker_client.errors import Problem

_BINDING = re.compile(
    r"\s*(?P<source>[^\s\[\]]+)\s*(?:\[(?P<keys>[^\[\]]*)\])?\s*->\s*(?P<destination>[^\s\[\]]+)\s*"
)


_CUT = "; a '#' after a space begins a comment of YAML: put the binding in quotes"


class ShortBinding(NamedTuple):
    """A binding in short form, taken apart."""

    source: str
    destination: str
    keys: tuple[str, ...]


def parse_binding(text: str) -> ShortBinding:
    """Take ``source[key1, key2] -> destination`` apart; keys are optional.

    Names may hold anything but white space and square brackets; keys are separated by commas or
    white space.

    Raises:
        ValueError: the text is not of that form; the message says how it should look.
    """
    match = _BINDING.fullmatch(text)
    if match is None or "->" in match["source"] or "->" in match["destination"]:
        raise ValueError(
            f"{text!r} is not a binding; write 'source -> destination' or "
            "'source[key1, key2] -> destination', with one destination and without spaces or "
            "brackets in the names" + (_CUT if "[" in text and "]" not in text else "")
        )
    if "," in match["source"] or "," in match["destination"]:
        raise ValueError(f"{text!r} names several exchanges or queues; write one binding for each")
    keys = tuple(key for key in re.split(r"[\s,]+", match["keys"] or "") if key)
    if match["keys"] is not None and not keys:
        raise ValueError(f"{text!r} has empty brackets; name a key or leave the brackets out")
    return ShortBinding(match["source"], match["destination"], keys)


_SHOVEL = re.compile(r"\s*(?P<subscription>\S+?)\s*->\s*(?P<publication>\S+)\s*")


def shovel_section(value: object, name: str, spot: Spot) -> tuple[Section, str | None]:
    """The long form of one shovel, and what is wrong with its short form, ``sub -> pub``."""
    written = Section(value) if isinstance(value, Section) else Section()
    short = value if isinstance(value, str) else name if "->" in name else None
    if short is not None:
        match = _SHOVEL.fullmatch(short)
        if match is None or "->" in match["publication"]:
            return written, (
                f"{short!r} is not a shovel; write 'subscription -> publication', or a mapping "
                "with these two keys"
            )
        for key, found in match.groupdict().items():
            if written.get(key) is None:
                written.put(key, found, spot)
    if not name:
        name = f"{written.get('subscription')} -> {written.get('publication')}"
    written.put("name", name, spot)
    return written, None


def binding_section(value: object, name: str, spot: Spot) -> tuple[Section, str | None]:
    """The long form of one binding, and what is wrong with its short form.

    Args:
        value: a short form, or a mapping that may complete a `name` in short form.
        name: key or name of the binding; "" when it has none.
        spot: where it stands.
    """
    complaint: str | None = None
    written = Section(value) if isinstance(value, Section) else Section()
    short = value if isinstance(value, str) else name if "->" in name else None
    parsed: ShortBinding | None = None
    if short is not None:
        try:
            parsed = parse_binding(short)
        except ValueError as error:
            complaint = str(error)
    keys = _all_keys(written, parsed)
    if keys is not None:
        key_spot = next((written.spots[k] for k in _KEY_NAMES if k in written.spots), spot)
        written.put("binding_keys", keys, key_spot)
    written.pop("binding_key", None)
    if parsed is not None:
        for key, found in (("source", parsed.source), ("destination", parsed.destination)):
            if written.get(key) is None:
                written.put(key, found, spot)
    if not name:
        name = short or f"{written.get('source')} -> {written.get('destination')}"
    written.put("name", name, spot)
    return written, complaint


_EXAMPLES = {
    "exchanges": "{type: direct}",
    "queues": "{options: {durable: true}}",
    "publications": "{exchange: ...}",
    "subscriptions": "{queue: ...}",
}

_SHORT_FORMS = {"bindings": binding_section, "shovels": shovel_section}

_KEY_NAMES = ("binding_keys", "binding_key")


def _all_keys(written: Section, parsed: ShortBinding | None) -> object:
    """Union of all spellings of the keys, without doubles; None when there is no key."""
    several, one = written.get("binding_keys"), written.get("binding_key")
    if several is not None and not isinstance(several, Items):
        return [several] if isinstance(several, str) else several
    # An element that is not text is kept, so that the model complains about it.
    found = [*(several or ()), *(() if one is None else (one,)), *(parsed.keys if parsed else ())]
    unique = [key for index, key in enumerate(found) if key not in found[:index]]
    return unique if found or several is not None else None


def collection(parent: Section, key: str, path: str, problems: list[Problem]) -> Section:
    """What stands under `key` of `parent`, as a section of named sections.

    A collection is a list of names, a list of mappings with a `name`, or a mapping by name.
    """
    raw, spot = parent.get(key), parent.spot(key)
    place = joined(path, key)
    result = Section()
    if raw is None:
        return result
    if not isinstance(raw, Section | Items):
        kinds = "a list or a mapping by name"
        problems.append(Problem(place, f"must be {kinds}", line=spot.line))
        return result
    for name, value, at in _entries(raw, key, place, problems):
        where = at.path or joined(place, name)
        if key in _SHORT_FORMS:
            entry, complaint = _SHORT_FORMS[key](value, name, at)
            if complaint:
                problems.append(Problem(where, complaint, line=at.line))
                continue
            name = str(entry["name"])
            unnamed = isinstance(value, Section) and "name" not in value
            if name in result and unnamed and key == "bindings":
                # Bindings of one pair may differ in their arguments alone.
                name = f"{name} ({len(result) + 1})"
                entry.put("name", name, at)
        elif isinstance(value, Section):
            entry = Section(value)
            entry.put("name", name, at)
        elif value is None:
            entry = Section()
            entry.put("name", name, at)
        else:
            example = _EXAMPLES.get(key)
            message = "must be a mapping" + (f", such as {example}" if example else "")
            problems.append(Problem(where, message, line=at.line))
            continue
        if name in result:
            problems.append(Problem(where, "is declared twice", line=at.line))
        result.put(name, entry, at._replace(path=where))
    return result


def _entries(
    raw: Section | Items, key: str, place: str, problems: list[Problem]
) -> list[tuple[str, object, Spot]]:
    """(name, value, spot) of each element; the name is "" for one that needs none."""
    entries: list[tuple[str, object, Spot]] = []
    if isinstance(raw, Section):
        for name, value in raw.items():
            stated = value.get("name", name) if isinstance(value, Section) else name
            if stated != name:
                message = f"its name {stated!r} contradicts its key; leave the name out"
                problems.append(Problem(joined(place, name), message, line=raw.spot(name).line))
            entries.append((name, value, raw.spot(name)))
        return entries
    for index, value in enumerate(raw):
        spot = raw.spots[index]
        if key in _SHORT_FORMS and not (isinstance(value, Section) and value.get("name")):
            spot = spot._replace(path=joined(place, index))
        if isinstance(value, str):
            entries.append(("", value, spot) if key in _SHORT_FORMS else (value, None, spot))
        elif not isinstance(value, Section):
            message = "must be a name or a mapping"
            problems.append(Problem(joined(place, index), message, line=spot.line))
        elif isinstance(value.get("name"), str) or (key in _SHORT_FORMS and "name" not in value):
            entries.append((value.get("name", ""), value, spot))
        else:
            message = "needs a name: add 'name', as text"
            name = next(iter(value), "")
            if value.get(name) is None or isinstance(value[name], Section):
                message = (
                    f"is a mapping in a list: write {{name: {name}, ...}}, or no '-' before it"
                )
            problems.append(Problem(joined(place, index), message, line=spot.line))
    return entries
