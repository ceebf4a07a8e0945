"""Words as rows of small noisy letter images, in the manner of handwriting recognition data, made on the spot.

    P(word of rank r) = 1 / (r + 20) up to a constant
    image_t = clip(blur(dropout(shift(glyph[letter_t]))) + sigma e_t, 0, 1),   e_t ~ N(0, I)

Each letter is 16 rows of 8 pixels. The words are English, so neighbouring letters inform each other; single letters
are noisy enough that a classifier of one image alone confuses many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad
from torch.nn.utils.rnn import pad_sequence

from structlearn.errors import ArgumentError
from structlearn.structures.base import PAD, check_count

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
HEIGHT, WIDTH = 16, 8

# Letters side by side, a to i, j to r and s to z; a blank line separates the bands.
GLYPHS = """
........ ........ ........ ........ ........ ........ ........ ........ ........
........ .##..... ........ .....##. ........ ....###. ........ .##..... ........
........ ..#..... ........ ......#. ........ ...#...# ........ ..#..... ...##...
........ ..#..... ........ ......#. ........ ...#.... ........ ..#..... ........
........ ..#..... ........ ......#. ........ ...#.... ........ ..#..... ........
..####.. ..#.##.. ...###.. ..###.#. ..####.. .######. ..###.#. ..#.##.. ..###...
.....##. ..##..#. ..#...#. .#...##. .#....#. ...#.... .#...##. ..##..#. ....#...
......#. ..#....# .##..... #.....#. .#....#. ...#.... .#....#. ..#...#. ....#...
..#####. ..#....# .#...... #.....#. .######. ...#.... .#....#. ..#...#. ....#...
.##...#. ..#....# .#...... #.....#. .#...... ...#.... .#...##. ..#...#. ....#...
.#...##. ..##..#. ..#...#. .#...##. .##...#. ...#.... ..###.#. ..#...#. ....#...
..####.# .#.###.. ...###.. ..###.## ..####.. ..###... ......#. .###.### ..#####.
........ ........ ........ ........ ........ ........ .#....#. ........ ........
........ ........ ........ ........ ........ ........ ..####.. ........ ........
........ ........ ........ ........ ........ ........ ........ ........ ........
........ ........ ........ ........ ........ ........ ........ ........ ........

........ ........ ........ ........ ........ ........ ........ ........ ........
........ .##..... ..###... ........ ........ ........ ........ ........ ........
.....##. ..#..... ....#... ........ ........ ........ ........ ........ ........
........ ..#..... ....#... ........ ........ ........ ........ ........ ........
........ ..#..... ....#... ........ ........ ........ ........ ........ ........
...####. ..#..##. ....#... ##.#.##. .#.###.. ...##... ##.###.. ..###.## .###.##.
......#. ..#.#... ....#... .##.#..# ..#...#. ..#..#.. .##...#. .#...##. ...##..#
......#. ..##.... ....#... .#..#..# ..#...#. .#....#. .#.....# #.....#. ...#....
......#. ..###... ....#... .#..#..# ..#...#. .#....#. .#.....# #.....#. ...#....
......#. ..#..#.. ....#... .#..#..# ..#...#. .#....#. .#.....# #.....#. ...#....
......#. ..#...#. ....#... .#..#..# ..#...#. ..#..#.. .##...#. .#...##. ...#....
......#. .###..## ..#####. ##..#..# .##..### ...##... .#.###.. ..###.#. .#####..
.#....#. ........ ........ ........ ........ ........ .#...... ......#. ........
..#..#.. ........ ........ ........ ........ ........ .#...... ......#. ........
...##... ........ ........ ........ ........ ........ ###..... .....### ........
........ ........ ........ ........ ........ ........ ........ ........ ........

........ ........ ........ ........ ........ ........ ........ ........
........ ........ ........ ........ ........ ........ ........ ........
........ ...#.... ........ ........ ........ ........ ........ ........
........ ...#.... ........ ........ ........ ........ ........ ........
........ ...#.... ........ ........ ........ ........ ........ ........
..####.. .######. .##..##. ###..### ##....## .##..##. .##..### .######.
.#....#. ...#.... ..#...#. .#....#. .#....#. ..#..#.. ..#...#. .#...#..
.##..... ...#.... ..#...#. .#....#. .#.##.#. ...##... ..#...#. ....#...
..####.. ...#.... ..#...#. ..#..#.. .#.##.#. ...##... ...#.#.. ...#....
.....##. ...#.... ..#...#. ..#..#.. .#.##.#. ..#..#.. ...#.#.. ..#.....
.#....#. ...#..#. ..#..##. ...##... ..#..#.. ..#..#.. ....##.. .#....#.
..####.. ....##.. ...##.## ...##... ..#..#.. .##..##. ....#... .######.
........ ........ ........ ........ ........ ........ ....#... ........
........ ........ ........ ........ ........ ........ .#.#.... ........
........ ........ ........ ........ ........ ........ ..#..... ........
........ ........ ........ ........ ........ ........ ........ ........
"""

# Roughly the commonest first.
_LEXICON = """
that with this from they which would there their about could other when what these them then than have know just like
make even very back most next upon five some into only first after where should those through before between while
again never another people because little without thought being great might nothing still every found always something
against though under place right think house world himself looking mother going whether things father rather together
night having during country children water government often moment nature question number power present morning
certain enough matter order woman friend white small since following course different important second others several
general further ground either already brother sometimes perhaps possible reason taking coming making themselves whole
therefore until thousand hundred large given three seven join judge journey joint object expect example explain text
exchange size prize zero zone began believe better above round strong within money heart young river standing interest
state system party position attention nation national condition action relation education direction production
information operation tradition section station motion mention opinion decision meeting reading writing building
feeling meaning learning training working playing evening beginning opening walking talking thinking speaking
listening watching sitting leaving living giving getting bringing teacher teaching school science student study
subject sister letter winter summer weather feather leather gather neither northern southern western eastern north
south earth month mouth truth health strength length light sight fight height weight eight straight bright brought
bought caught daughter laughter quick quiet quite quarter queen require machine kitchen church change chance choose
check strange orange language village message manage horse hour sound around mountain captain market master minister
minute million member remember center enter paper person picture plant point price print problem program promise
public special spring street stream story strike string spread square service sense sentence silver similar simple
single thing bring king wonder wonderful beautiful careful forest forget forward forth fourth force form former
tomorrow tonight touch toward town trade travel treatment trouble true trust turn twelve twenty understand university
various visit voice window wood word written wrong yellow yesterday freeze key book broken kingdom knowledge known
value victory
"""
LEXICON = tuple(_LEXICON.split())


class Words(NamedTuple):
    """A batch of words: N is the longest length, pixels run row by row."""

    images: Tensor  # (B, N, 128) in [0, 1], 0 at padding
    labels: Tensor  # (B, N), 0 for "a", -100 at padding
    lengths: Tensor  # (B,)

    def split(self, first: int) -> tuple[Words, Words]:
        """The first words and the rest, which share no image."""
        return Words(*(x[:first] for x in self)), Words(*(x[first:] for x in self))

    def take(self, rows: Tensor) -> Words:
        """The words at ``rows`` (M,), in that order, padded to the longest of them."""
        longest = int(self.lengths[rows].max())
        return Words(self.images[rows, :longest], self.labels[rows, :longest], self.lengths[rows])

    def spell(self, labels: Tensor | None = None) -> list[str]:
        """The words as strings; those of other ``labels`` (B, N) at the same lengths, if given."""
        rows = (self.labels if labels is None else labels).tolist()
        return ["".join(ALPHABET[c] for c in row[:n]) for row, n in zip(rows, self.lengths.tolist(), strict=True)]


def glyphs() -> Tensor:
    """(26, 16, 8) float32, 1 where there is ink."""
    bands = [[row.split() for row in band.split("\n")] for band in GLYPHS.strip().split("\n\n")]
    letters = [[row[i] for row in band] for band in bands for i in range(len(band[0]))]
    return torch.tensor([[[float(pixel == "#") for pixel in row] for row in letter] for letter in letters])


def ocr_words(
    count: int,
    *,
    seed: int = 0,
    lexicon: Sequence[str] = LEXICON,
    shift: int = 1,
    dropout: float = 0.15,
    blur: float = 0.8,
    noise: float = 0.17,
) -> Words:
    """``count`` words drawn with replacement, every letter drawn afresh; equal seeds give equal words.

    Args:
        count: B.
        seed: of the words and the noise.
        lexicon: lower-case words; those at the front are drawn more often, see above.
        shift: letters move by up to this many pixels in either direction.
        dropout: share of the ink lost, half of it by whole strokes: a row or a column of the letter at a time.
        blur: letters are mixed with their 3x3 means, with a weight uniform between 0 and this.
        noise: sigma, the standard deviation of the pixel noise before clipping.
    """
    _check(count, lexicon, shift, {"dropout": dropout, "blur": blur, "noise": noise})
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 / (torch.arange(len(lexicon)) + 20.0)
    chosen = torch.multinomial(frequency, count, replacement=True, generator=generator).tolist()
    rows = [torch.tensor([ALPHABET.index(letter) for letter in lexicon[i]]) for i in chosen]
    labels = pad_sequence(rows, batch_first=True, padding_value=PAD)
    images = torch.zeros(*labels.shape, HEIGHT * WIDTH)
    here = labels != PAD
    images[here] = _draw(labels[here], shift, dropout, blur, noise, generator).flatten(1)
    return Words(images, labels, here.sum(1))


def _check(count: int, lexicon: Sequence[str], shift: int, shares: dict[str, float]) -> None:
    check_count("count", count)
    odd = [word for word in lexicon if not word or set(word) - set(ALPHABET)]
    if not lexicon or odd:
        got = repr(odd[0]) if odd else "an empty lexicon"
        raise ArgumentError("lexicon", "words over the letters a to z", got, "lower-case them and drop other signs")
    if not isinstance(shift, int) or not 0 <= shift <= WIDTH:
        raise ArgumentError("shift", f"an integer from 0 to {WIDTH}", repr(shift), "1 moves letters by a pixel")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ArgumentError(name, "a number from 0 to 1", repr(value), "0 turns it off")


def _draw(letters: Tensor, shift: int, dropout: float, blur: float, noise: float, generator: torch.Generator) -> Tensor:
    """Images (M, 16, 8) of letters (M,)."""
    m = len(letters)
    image = pad(glyphs()[letters], [shift] * 4)
    top, left = torch.randint(2 * shift + 1, (2, m, 1), generator=generator)
    rows = (top + torch.arange(HEIGHT))[:, :, None].expand(-1, -1, image.shape[2])
    columns = (left + torch.arange(WIDTH))[:, None, :].expand(-1, HEIGHT, -1)
    image = image.gather(1, rows).gather(2, columns)

    # Rows, columns and pixels are lost independently, with probabilities that together lose `dropout`.
    stroke, pixel = 1 - (1 - dropout) ** 0.25, 1 - (1 - dropout) ** 0.5
    for size, share in (((m, HEIGHT, 1), stroke), ((m, 1, WIDTH), stroke), ((m, HEIGHT, WIDTH), pixel)):
        image = image * (torch.rand(size, generator=generator) >= share)

    weight = blur * torch.rand((m, 1, 1), generator=generator)
    image = torch.lerp(image, avg_pool2d(image[:, None], 3, stride=1, padding=1)[:, 0], weight)
    return (image + noise * torch.randn(image.shape, generator=generator)).clamp(0, 1)
