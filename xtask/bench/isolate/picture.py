#!/usr/bin/env python3
"""The timelines of a page of `slackline isolate report`, one below the other, as one picture for the manual.

  picture.py PAGE.html OUT.svg [WORDS…]      Load Latency 'Best-effort CPU' 'Cores in use'

WORDS say which timelines, each by the beginning of its caption. docs/pictures/isolate.svg is made so:

  examples/isolate-memcached/run page.html 120 4000 --ramp
  xtask/bench/isolate/picture.py page.html docs/pictures/isolate.svg
"""

import html
import re
import sys

FIGURE = re.compile(
    r'<figure class="time"><div class="scale"><span>(?P<top>.*?)</span><span>0</span></div>\s*'
    r'<svg[^>]*viewBox="0 0 (?P<width>\d+) (?P<height>\d+)"[^>]*>(?P<inner>.*?)</svg>\s*'
    r'<div class="end">(?P<end>.*?)</div><figcaption>(?P<caption>.*?)</figcaption></figure>',
    re.DOTALL,
)
# Room for the caption above a timeline, for its time below, and for its scale at the left.
ABOVE, BELOW, LEFT = 26, 20, 52
# The page's style in light colours: a picture in a manual has no page around it.
STYLE = (
    "text{fill:#1b1f24;font:11px system-ui,sans-serif}.caption{font-size:13px}.axis{stroke:#d5dae0}.end{text-anchor:end}"
    "polyline{fill:none;stroke-width:1.5}"
)
COLOURS = {"var(--over)": "#c2502e", "var(--bar)": "#4878a8"}


def drawn(page, words):
    figures = [found.groupdict() for found in FIGURE.finditer(page)]
    chosen = []
    for word in words:
        found = next((figure for figure in figures if html.unescape(figure["caption"]).startswith(word)), None)
        if found is None:
            captions = ", ".join(figure["caption"] for figure in figures)
            sys.exit(f"no timeline begins with {word!r}: there are {captions}")
        chosen.append(found)
    width = LEFT + max(int(figure["width"]) for figure in chosen)
    total = sum(ABOVE + int(figure["height"]) + BELOW for figure in chosen)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
    ]
    top = 0
    for figure in chosen:
        inner, height = figure["inner"], int(figure["height"])
        for name, colour in COLOURS.items():
            inner = inner.replace(name, colour)
        inner = re.sub(r"<title>.*?</title>\n?", "", inner)
        base = top + ABOVE + height
        out += [
            f'<text class="caption" x="{LEFT}" y="{top + 17}">{figure["caption"]}</text>',
            f'<text class="end" x="{LEFT - 6}" y="{top + ABOVE + 10}">{figure["top"]}</text>',
            f'<text class="end" x="{LEFT - 6}" y="{base}">0</text>',
            f'<text class="end" x="{width}" y="{base + 13}">{figure["end"]}</text>',
            f'<g transform="translate({LEFT} {top + ABOVE})">{inner}</g>',
        ]
        top += ABOVE + height + BELOW
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    page, out, *words = sys.argv[1:]
    with open(page) as file:
        picture = drawn(file.read(), words or ["Load", "Latency", "Best-effort CPU", "Cores in use"])
    with open(out, "w") as file:
        file.write(picture)


main()
