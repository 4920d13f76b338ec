#!/usr/bin/env python3
"""The timelines of a page of `slackline isolate report`, one below the other, as one picture for the manual.

  picture.py PAGE.html OUT.svg [WORDS…]      p99 'Best-effort CPU' 'Cores in use'

WORDS say which timelines, each by the beginning of its caption. docs/pictures/isolate.svg is made so:

  examples/isolate-memcached/run page.html 120 4000 --ramp
  xtask/bench/isolate/picture.py page.html docs/pictures/isolate.svg
"""

import html
import re
import sys

FIGURE = re.compile(r'<figure><svg[^>]*viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg><figcaption>(.*?)</figcaption></figure>', re.DOTALL)
CAPTION = 22
# The page's style in light colours: a picture in a manual has no page around it.
STYLE = (
    "text{fill:#1b1f24;font:11px system-ui,sans-serif}.caption{font-size:13px}.axis{stroke:#d5dae0}"
    ".limit{stroke:#c2502e;stroke-dasharray:4 3}"
)
COLOURS = {"var(--over)": "#c2502e", "var(--bar)": "#4878a8"}


def drawn(page, words):
    figures = [(int(width), int(height), inner, caption) for width, height, inner, caption in FIGURE.findall(page)]
    chosen = []
    for word in words:
        found = next((figure for figure in figures if html.unescape(figure[3]).startswith(word)), None)
        if found is None:
            sys.exit(f"no timeline begins with {word!r}: there are {', '.join(figure[3] for figure in figures)}")
        chosen.append(found)
    total = (max(figure[0] for figure in chosen), sum(figure[1] + CAPTION for figure in chosen))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" width="{total[0]}" height="{total[1]}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
    ]
    top = 0
    for _, height, inner, caption in chosen:
        for name, colour in COLOURS.items():
            inner = inner.replace(name, colour)
        inner = re.sub(r"<title>.*?</title>\n?", "", inner)
        out.append(f'<text class="caption" x="44" y="{top + 15}">{caption}</text>')
        out.append(f'<g transform="translate(0 {top + CAPTION})">{inner}</g>')
        top += height + CAPTION
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    page, out, *words = sys.argv[1:]
    with open(page) as file:
        picture = drawn(file.read(), words or ["p99", "Best-effort CPU", "Cores in use"])
    with open(out, "w") as file:
        file.write(picture)


main()
