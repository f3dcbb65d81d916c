"""Types of operations, in groups: one rule is for all types of a group.

In: nothing. Out: tuples of types, as a NodeDef's `op` has them::

    SAME            ("Cast", ..., "Identity", "Neg", ...)    rule `arithmetic.same`
    BY_EXAMPLE      (..., "Conv2D", ..., "MaxPool", ...)     rule `along_axes.by_example`
"""


def _named(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ELEMENT_WISE = _named("""
    Abs Acos Acosh Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0
    BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddV1 Bitcast BitwiseAnd
    BitwiseOr BitwiseXor Bucketize Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj Cos Cosh Dawsn DecodeBase64
    Digamma Elu EncodeBase64 Equal Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsPerChannel Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Igamma Igammac
    Imag Inv Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot
    LogicalOr Mod Ndtri NextAfter NotEqual Polar Polygamma PopulationCount Pow Real Reciprocal RegexFullMatch
    RegexReplace Relu Relu6 RightShift Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Spence Sqrt Square
    SquaredDifference StaticRegexFullMatch StaticRegexReplace StringJoin StringLength StringLower StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper AsString Substr Tan
    Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
""")
"""Functions of the entries at the same position."""

SAME = _named("""
    Cast CheckNumericsV2 DebugIdentityV2 EnsureShape Identity Neg OptimizationBarrier PlaceholderWithDefault
    PreventGradient Snapshot StopGradient
""")
"""Operations whose result has the state of their input."""

CONSTANT = _named("""
    Assert BroadcastGradientArgs ConcatOffset Const EmptyTensorList LookupTableSizeV2 NoOp Print PrintV2 Rank
    RngReadAndSkip StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    Timestamp VarIsInitializedOp VariableShape
""")
"""Operations whose results do not depend on the examples."""

MOVING = (*SAME, *_named("""
    BroadcastTo Case ConcatV2 ConjugateTranspose ExpandDims Fill Gather GatherNd GatherV2 If IdentityN OnesLike Pack
    PartitionedCall Reshape ResourceGather ResourceGatherNd ScatterNd SegmentMax SegmentMaxV2 SegmentMean SegmentMin
    SegmentMinV2 SegmentSum SegmentSumV2 Shape ShapeN Size Slice SparseSegmentMean SparseSegmentSum Split SplitV
    Squeeze StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile StridedSlice TensorListFromTensor
    TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListSetItem TensorListStack TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate Tile Transpose Unpack UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum While ZerosLike
"""))
"""Operations whose rules know positions of examples: they move entries, or take and put them by index."""

BY_EXAMPLE = _named("""
    AdjustHue AdjustSaturation AvgPool AvgPool3D Conv Conv2D Conv3D
    DepthToSpace DepthwiseConv2dNative Dilation2D ExtractImagePatches ExtractVolumePatches FractionalAvgPool
    FractionalMaxPool HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 LRN MaxPool
    MaxPool3D MaxPoolV2 Multinomial RGBToHSV ResizeArea ResizeBicubic ResizeBilinear
    ResizeNearestNeighbor ScaleAndTranslate SpaceToDepth StatelessMultinomial
""")
"""Operations that treat the entries along the first axis one by one."""

QUANTIZING = _named("QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4")
"""Roundings to a few values between two bounds, which are given, or are the extremes of the input."""

OF_MATRICES = _named("""
    BandedTriangularSolve Cholesky Eig FFT2D IFFT2D IRFFT2D LogMatrixDeterminant Lu MatrixBandPart MatrixDeterminant
    MatrixDiagPart MatrixDiagPartV3 MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiagV3 MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr RFFT2D SelfAdjointEigV2 Svd TridiagonalMatMul
    TridiagonalSolve
""")
"""Operations on the matrices of the last two axes."""

OF_IMAGES = _named("AdjustContrastv2 FFT3D IFFT3D IRFFT3D RFFT3D")
"""Operations on the last three axes."""

OF_VECTORS = _named("Cross FFT IFFT IRFFT MatrixDiag MatrixDiagV3 RFFT")
"""Operations on the vectors of the last axis."""
TO_RAGGED = _named("SparseCross SparseCrossHashed SparseCrossV2 StringSplit StringSplitV2 UnicodeDecode")
"""Operations that make any number of entries of one entry of each example."""

OF_RAGGED = (*SAME, *_named("""
    Add AddV2 ConcatV2 Cumsum DenseBincount Equal ExpandDims Greater LookupTableFindV2 Max Maximum Minimum Mul Pack
    Range RegexReplace Reshape Select SelectV2 Shape Size StaticRegexReplace StridedSlice StringLower StringNGrams
    StringToHashBucketFast StringToHashBucketStrong Sub UnicodeEncode
"""))
"""Operations that TensorFlow and Keras compute entries with, and where the entries of each example begin."""

RAGGED_TO_DENSE = _named("RaggedBincount RaggedTensorToTensor SparseTensorDenseMatMul SparseToDense")
"""Operations that make rows of ragged and sparse tensors."""

SPARSE_TO_DENSE = {"SparseToDense": (0, 2, 1), "SparseTensorDenseMatMul": (0, 1, 2)}
"""The same of sparse tensors: the positions of the indices, the values and the shape among their inputs."""

DRAWS = _named("""
    ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomStandardNormal RandomUniform RandomUniformInt
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
    StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2
    TruncatedNormal
""")
"""Random numbers; the first input is their shape."""
