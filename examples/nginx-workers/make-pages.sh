#!/bin/sh
# Makes the site that the example serves, in the directory $1: one page of about 30 KB, a style
# sheet and a few JSON answers between 0.2 and 2 KB. Every run on every machine serves the same
# bytes: the words are drawn by a linear congruential generator modulo 2^24 (full period, as its
# multiplier is 1 modulo 4 and its increment odd: Hull and Dobell, SIAM Review 4(3), 1962; small
# enough that awk's doubles stay exact).
set -eu
mkdir -p "$1"
cd "$1"

# words SEED BYTES: that many bytes of text
words() {
    awk -v state="$1" -v bytes="$2" '
        function next_random(below) {
            state = (state * 1021 + 1013904223) % 16777216
            return int(state / 16777216 * below)
        }
        function syllables(count,   word) {
            word = ""
            while (count-- > 0)
                word = word substr("bcdfghlmnprstvwz", next_random(16) + 1, 1) \
                            substr("aeiou", next_random(5) + 1, 1)
            return word
        }
        BEGIN {
            for (i = 0; i < 900; i++) vocabulary[i] = syllables(1 + next_random(4))
            while (length(text) < bytes) {
                # The square makes some words frequent, as in prose.
                pick = next_random(900)
                text = text vocabulary[int(pick * pick / 900)] " "
            }
            print substr(text, 1, bytes)
        }'
}

{
    printf '<!doctype html>\n<html><head><title>Slackline</title></head><body>\n'
    for paragraph in 1 2 3 4 5 6 7 8 9 10 11 12; do
        printf '<h2>Part %d</h2>\n<p class="text">%s</p>\n' "$paragraph" "$(words "$paragraph" 2500)"
    done
    printf '</body></html>\n'
} > index.html
printf '/* %s */\nbody { margin: 0 auto }\n' "$(words 40 4000)" > style.css
for size in 200 500 1000 2000; do
    printf '{"id":%d,"text":"%s"}\n' "$size" "$(words "$size" "$size")" > "item-$size.json"
done
