"""Examples as tensors and back, for every task."""

from structlearn.data.codecs.base import Codec as Codec
from structlearn.data.codecs.joint import JointCodec as JointCodec
from structlearn.data.codecs.letters import LetterCodec as LetterCodec
from structlearn.data.codecs.lists import RerankingCodec as RerankingCodec
from structlearn.data.codecs.pairs import AligningCodec as AligningCodec
from structlearn.data.codecs.texts import ClassificationCodec as ClassificationCodec
from structlearn.data.codecs.tokens import SegmentationCodec as SegmentationCodec
from structlearn.data.codecs.tokens import TaggingCodec as TaggingCodec
from structlearn.data.codecs.trees import ParsingCodec as ParsingCodec
