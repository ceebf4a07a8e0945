"""Examples as tensors and back, for every task."""

from structlearn.data.codecs.base import Codec as Codec
from structlearn.data.codecs.letters import LetterCodec as LetterCodec
from structlearn.data.codecs.tokens import SegmentationCodec as SegmentationCodec
from structlearn.data.codecs.tokens import TaggingCodec as TaggingCodec
