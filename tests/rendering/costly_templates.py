"""Templates whose work no count of loops shows: in filters, comparisons and long texts."""

from __future__ import annotations

_LONG = "{% set t = long %}" + "{% set t = t ~ t %}" * 4  # 64,000 characters
_OFTEN = "{% for a in range(9999) %}"
_END = "{% endfor %}"

REBOUND = {
    "range by set": "{% set range = text.upper %}X={{ range() | sh }}\n",
    "refuse by set": "{% set refuse = text.swapcase %}X={{ refuse() | sh }}\n",
    "range by for": "{% for range in [text.upper] %}X={{ range() | sh }}\n{% endfor %}",
    "refuse by for": "{% for a, refuse in [[1, 2]] %}{% endfor %}",
    "refuse by the loop over it": "{% for refuse in names %}{{ refuse('x') | sh }}{% endfor %}",
    "range by a table": "{% set range = table.items %}{% for k, v in range() %}{% endfor %}",
    "range by a list's method": "{% set range = names.count %}X={{ range('a') }}\n",
    "range by another name": "{% set f = range %}X={{ f(3) | length }}\n",
    "loop by set": "{% for a in names %}{% set loop = 1 %}{% endfor %}",
    "a method that is only named": "X={{ text.upper | sh }}\n",
    "a table's method": "X={{ (table.keys | first) | sh }}\n",
}

COSTLY = {
    "a long text searched for a long one": (
        f"{_LONG}{{% set p = long ~ 'y' %}}{_OFTEN}{{% if p in t %}}{{% endif %}}{_END}"
    ),
    "a long list searched": (
        f"{{% set l = range(9999) | sort %}}{_OFTEN}{{% if 0.5 in l %}}{{% endif %}}{_END}"
    ),
    "a range searched": f"{_OFTEN}{{% if 'x' in range(99999) %}}{{% endif %}}{_END}",
    "long texts changed": f"{_LONG}{_OFTEN}{{% set u = t | upper | lower | upper %}}{_END}",
    "a long text changed again and again": (
        f"{_LONG}{_OFTEN}{{% set u = t{' | upper | lower' * 200} %}}{_END}"
    ),
    "long texts quoted": f"{_LONG}{_OFTEN}{{% set u = t | sh %}}{_END}",
    "long texts compared": (
        f"{_LONG}{{% set u = t ~ '' %}}{_OFTEN}{{% if t == u %}}{{% endif %}}{_END}"
    ),
    "long texts joined": f"{_LONG}{_OFTEN}{{% set u = t ~ '' %}}{_END}",
    "long lists sorted": f"{_OFTEN}{{% set l = range(99999) | sort %}}{_END}",
    "a list sorted again and again": f"{_OFTEN}{{% set l = range(9999){' | sort' * 500} %}}{_END}",
    "long lists counted": f"{_OFTEN}{{% set n = range(99999) | sort | length %}}{_END}",
    "tables sorted": f"{_OFTEN}{{% for k, v in many | dictsort %}}{{% endfor %}}{_END}",
    "loops that keep nothing": (
        f"{_OFTEN}{{% for b in range(9999) if b < 0 %}}{{% endfor %}}{_END}"
    ),
    "a condition of a thousand parts": f"{_OFTEN}{{% if {'1 and ' * 900}1 %}}{{% endif %}}{_END}",
}
