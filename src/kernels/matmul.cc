#include "kernels/matmul.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/matmul_path.h"
#include "kernels/dequantize.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_plan.h"
#include "tensor/buffer.h"

namespace attest {
namespace {

constexpr int64_t kAlign = 64;
// Up to this many activations each rank prepares its own copy: about 0.5 us, what a barrier would cost.
constexpr int64_t kPrivatePrepareElements = 4096;
// Up to this many rows the bytes of W bound the time, beyond it the products do: what a tile costs.
constexpr int64_t kByteBoundRows = 8;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

struct PathEntry {
  const MatMulPath* path;
  CpuIsa isa;
  bool precise;  // every product in f32
  bool rowwise;  // can do PackOptions::rowwise
};

// Best first.
constexpr PathEntry kPaths[] = {
#if defined(__x86_64__)
    {&kMatMulAmx, CpuIsa::kAmx, false, false},
    {&kMatMulAvx512Bf16, CpuIsa::kAvx512Bf16, false, false},
    {&kMatMulAvx512Vnni, CpuIsa::kAvx512Vnni, false, true},
    {&kMatMulAvx512, CpuIsa::kAvx512, true, true},
    {&kMatMulAvx2, CpuIsa::kAvx2, false, true},
    {&kMatMulAvx2Precise, CpuIsa::kAvx2, true, true},
#elif defined(__aarch64__)
    {&kMatMulNeonI8mm, CpuIsa::kNeonI8mm, false, true},
    {&kMatMulNeonDot, CpuIsa::kNeonDot, false, true},
    {&kMatMulNeon, CpuIsa::kNeon, true, true},
#endif
    {&kMatMulPortable, CpuIsa::kPortable, true, true},
#if defined(ATTEST_TEST_PATHS)  // tests/emulated: behind the path that takes everything, reached by name only
    ATTEST_TEST_PATHS
#endif
};

// Whether the choice without a forced name may take `entry`. CPUs with AVX512_FP16 (Sapphire Rapids and
// later) run vdpbf16ps at half the rate of f32 FMA or less, Zen 4 and 5 at twice: the bf16 bit alone says too
// little.
bool WorthChoosing(const PathEntry& entry, const CpuFeatures& cpu) {
  if (!HasIsa(cpu, entry.isa)) return false;
  return entry.isa != CpuIsa::kAvx512Bf16 || !cpu.avx512_fp16;
}

Expected<const MatMulPath*> ChoosePath(const PackedMatrix::PackOptions& options) {
  for (const PathEntry& entry : kPaths) {
    if (options.compute == ComputeMode::kPrecise && !entry.precise) continue;
    if (options.rowwise && !entry.rowwise) {
      if (options.forced_kernel != entry.path->name) continue;
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("matmul kernel \"{}\" multiplies few and many rows differently, which rowwise "
                              "products exclude",
                              options.forced_kernel),
                  "matmul_kernel");
    }
    if (options.forced_kernel.empty()) {
      if (WorthChoosing(entry, options.cpu)) return entry.path;
    } else if (options.forced_kernel == entry.path->name) {
      if (HasIsa(options.cpu, entry.isa)) return entry.path;
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("matmul kernel \"{}\" needs {}, which this CPU lacks; it can run: {}",
                              options.forced_kernel, CpuIsaName(entry.isa),
                              fmt::join(MatMulKernels(options.compute, &options.cpu), ", ")),
                  "matmul_kernel");
    }
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown matmul kernel \"{}\" for {} products; known: {}", options.forced_kernel,
                          options.compute == ComputeMode::kPrecise ? "precise" : "fast",
                          fmt::join(MatMulKernels(options.compute, nullptr), ", ")),
              "matmul_kernel");
}

Status CheckPart(const StoredMatrix& part, size_t index, int64_t cols) {
  constexpr int64_t kMaxExtent = int64_t{1} << 31;
  const auto fail = [&](const std::string& what) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("weight part {}: {}", index, what), "weight");
  };
  if (!IsWeightType(part.dtype)) {
    return fail(fmt::format("type {} is not a weight type of the matrix product", DTypeName(part.dtype)));
  }
  if (part.rows < 1 || part.rows > kMaxExtent)
    return fail(fmt::format("rows {} not in [1, 2^31]", part.rows));
  if (part.cols < 1 || part.cols > kMaxExtent)
    return fail(fmt::format("cols {} not in [1, 2^31]", part.cols));
  if (part.cols != cols) return fail(fmt::format("cols {} differ from part 0's {}", part.cols, cols));
  if (part.cols % BlockElements(part.dtype) != 0) {
    return fail(fmt::format("cols {} is not a multiple of {}'s block of {}", part.cols, DTypeName(part.dtype),
                            BlockElements(part.dtype)));
  }
  if (part.data == nullptr) return fail("no data");
  return {};
}

// Neighbouring parts of one type, stacked: tiles run through their common rows.
struct Segment {
  DType dtype = DType::kF32;
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t num_tiles = 0;
  int64_t tile_bytes = 0;
  int64_t offset = 0;  // of its first tile in the buffer
};

}  // namespace

struct PackedMatrix::Impl {
  const MatMulPath* path = nullptr;
  bool rowwise = false;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t num_tiles = 0;
  std::vector<Segment> segments;
  std::vector<TileRun> runs_by_bytes;  // of each segment: what a tile costs where memory bounds the time,
  std::vector<TileRun> runs_by_work;   // and where the products do
  Buffer bytes;
};

PackedMatrix::PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;
PackedMatrix::~PackedMatrix() = default;

int64_t PackedMatrix::rows() const { return impl_ == nullptr ? 0 : impl_->rows; }
int64_t PackedMatrix::cols() const { return impl_ == nullptr ? 0 : impl_->cols; }
int64_t PackedMatrix::size_bytes() const { return impl_ == nullptr ? 0 : impl_->bytes.size_bytes(); }

std::string PackedMatrix::kernel_name() const {
  std::string name;
  if (impl_ == nullptr) return name;
  for (const Segment& segment : impl_->segments) {
    const std::string one = fmt::format("matmul_{}_{}", DTypeName(segment.dtype), impl_->path->name);
    if (!name.empty()) name += '+';
    name += one;
  }
  return name;
}

void PackedMatrix::DequantizeRow(int64_t row, float* out) const {
  ATTEST_CHECK_GE(row, 0);
  ATTEST_CHECK_LT(row, rows());
  for (const Segment& segment : impl_->segments) {
    const int64_t in_segment = row - segment.row_begin;
    if (in_segment >= segment.rows) continue;
    const std::byte* tile =
        impl_->bytes.data() + segment.offset + in_segment / kTileRows * segment.tile_bytes;
    DequantizeTileRow(segment.dtype, tile, static_cast<int>(in_segment % kTileRows), impl_->cols, out);
    return;
  }
}

Expected<PackedMatrix> PackedMatrix::Pack(std::span<const StoredMatrix> parts, const PackOptions& options,
                                          ThreadTeam& team) {
  if (parts.empty()) return Fail(ErrorCode::kInvalidArgument, "a matrix needs at least one part", "weight");
  ATTEST_ASSIGN_OR_RETURN(const MatMulPath* path, ChoosePath(options));
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->rowwise = options.rowwise;
  impl->cols = parts[0].cols;
  int64_t size_bytes = 0;
  std::vector<size_t> last_part;  // of each segment, exclusive
  for (size_t i = 0; i < parts.size(); ++i) {
    ATTEST_RETURN_IF_ERROR(CheckPart(parts[i], i, impl->cols));
    if (impl->segments.empty() || impl->segments.back().dtype != parts[i].dtype) {
      impl->segments.push_back({.dtype = parts[i].dtype, .row_begin = impl->rows});
      last_part.push_back(i);
    }
    impl->segments.back().rows += parts[i].rows;
    last_part.back() = i + 1;
    impl->rows += parts[i].rows;
  }
  for (Segment& segment : impl->segments) {
    segment.num_tiles = RoundUp(segment.rows, kTileRows) / kTileRows;
    segment.tile_bytes = RowBytes(segment.dtype, impl->cols) * kTileRows;
    segment.offset = size_bytes;
    impl->num_tiles += segment.num_tiles;
    impl->runs_by_bytes.push_back({.num_tiles = segment.num_tiles, .tile_cost = segment.tile_bytes});
    impl->runs_by_work.push_back({.num_tiles = segment.num_tiles, .tile_cost = 1});
    size_bytes = RoundUp(size_bytes + segment.num_tiles * segment.tile_bytes, kAlign);
  }
  ATTEST_ASSIGN_OR_RETURN(impl->bytes, Buffer::Allocate(size_bytes, "packed weights", options.arena));

  size_t first_part = 0;
  for (size_t s = 0; s < impl->segments.size(); ++s) {
    const Segment& segment = impl->segments[s];
    const auto segment_parts = parts.subspan(first_part, last_part[s] - first_part);
    first_part = last_part[s];
    const int64_t row_bytes = RowBytes(segment.dtype, impl->cols);
    team.Run([&](int rank) {
      const IndexRange range = PartitionRange(segment.num_tiles, rank, team.size());
      std::vector<std::byte> gathered;
      for (int64_t tile = range.begin; tile < range.end; ++tile) {
        const int64_t begin = tile * kTileRows;
        const int64_t end = std::min(begin + kTileRows, segment.rows);
        const std::byte* source = nullptr;
        int64_t part_begin = 0;
        for (const StoredMatrix& part : segment_parts) {
          const int64_t part_end = part_begin + part.rows;
          if (begin >= part_begin && end <= part_end) source = part.data + (begin - part_begin) * row_bytes;
          part_begin = part_end;
        }
        if (source == nullptr) {  // the tile straddles parts: bring its rows together first
          gathered.resize(static_cast<size_t>(kTileRows * row_bytes));
          part_begin = 0;
          for (const StoredMatrix& part : segment_parts) {
            for (int64_t row = std::max(begin, part_begin); row < std::min(end, part_begin + part.rows);
                 ++row) {
              std::copy_n(part.data + (row - part_begin) * row_bytes, row_bytes,
                          gathered.data() + (row - begin) * row_bytes);
            }
            part_begin += part.rows;
          }
          source = gathered.data();
        }
        PackTile(segment.dtype, source, row_bytes, static_cast<int>(end - begin), impl->cols,
                 impl->bytes.data() + segment.offset + tile * segment.tile_bytes);
      }
    });
  }
  PackedMatrix matrix;
  matrix.impl_ = std::move(impl);
  return matrix;
}

std::vector<std::string> MatMulKernels(ComputeMode compute, const CpuFeatures* cpu) {
  std::vector<std::string> names;
  for (const PathEntry& entry : kPaths) {
    if (compute == ComputeMode::kPrecise && !entry.precise) continue;
    if (cpu == nullptr || HasIsa(*cpu, entry.isa)) names.emplace_back(entry.path->name);
  }
  return names;
}

struct MatMulScratch::Impl {
  Buffer bytes;
};

MatMulScratch::MatMulScratch() : impl_(std::make_unique<Impl>()) {}
MatMulScratch::~MatMulScratch() = default;

namespace {

// The scratch of one call: prepared activations (shared, or one copy per rank), then each rank's panels.
struct ScratchLayout {
  bool prepare = false;
  bool private_prepare = false;
  int64_t prepared_bytes = 0;  // of one copy
  int64_t rank_bytes = 0;      // of one rank's panels
  int64_t total_bytes = 0;
};

ScratchLayout LayOutScratch(const PackedMatrix::Impl& w, int64_t num_rows, int num_ranks) {
  ScratchLayout layout;
  for (const Segment& segment : w.segments) {
    layout.prepare = layout.prepare || w.path->needs_prepare(segment.dtype, num_rows, w.cols);
  }
  layout.private_prepare = num_ranks == 1 || num_rows * w.cols <= kPrivatePrepareElements;
  if (layout.prepare) layout.prepared_bytes = RoundUp(w.path->prepared_bytes(num_rows, w.cols), kAlign);
  layout.rank_bytes = RoundUp(w.path->scratch_bytes(num_rows, w.cols), kAlign);
  layout.total_bytes =
      layout.prepared_bytes * (layout.private_prepare ? num_ranks : 1) + layout.rank_bytes * num_ranks;
  return layout;
}

Status Grow(Buffer& bytes, int64_t size_bytes) {
  if (bytes.size_bytes() >= size_bytes) return {};
  ATTEST_ASSIGN_OR_RETURN(bytes, Buffer::Allocate(size_bytes, "scratch of the matrix product"));
  return {};
}

}  // namespace

Status MatMulScratch::Reserve(const PackedMatrix& w, int64_t max_tokens, const ThreadTeam& team) {
  // Few rows may need private copies, many rows one large one: room for both.
  const int64_t few = std::min<int64_t>(max_tokens, std::max<int64_t>(1, kPrivatePrepareElements / w.cols()));
  const int64_t size_bytes = std::max(LayOutScratch(w.impl(), max_tokens, team.size()).total_bytes,
                                      LayOutScratch(w.impl(), few, team.size()).total_bytes);
  return Grow(impl_->bytes, size_bytes);
}

void MatMul(const PackedMatrix& matrix, const MatMulArgs& args, MatMulScratch& scratch, ThreadTeam& team) {
  const PackedMatrix::Impl& w = matrix.impl();
  const int64_t num_rows = args.x.shape[0];
  ATTEST_CHECK_EQ(args.x.shape[1], w.cols);
  ATTEST_CHECK_EQ(args.y.shape[0], num_rows);
  ATTEST_CHECK_EQ(args.y.shape[1], w.rows);
  ATTEST_CHECK_EQ(args.x.stride[1], 1);
  ATTEST_CHECK_EQ(args.y.stride[1], 1);
  if (num_rows == 0) return;

  const ScratchLayout layout = LayOutScratch(w, num_rows, team.size());
  if (const Status grown = Grow(scratch.impl().bytes, layout.total_bytes); !grown) {
    CheckFailed(__FILE__, __LINE__, grown.error().message);
  }
  const MatMulGrid grid = PlanMatMulGrid(num_rows, w.num_tiles, team.size());
  const std::vector<TileRun>& runs = num_rows <= kByteBoundRows ? w.runs_by_bytes : w.runs_by_work;

  team.Run([&](int rank) {
    std::byte* base = scratch.impl().bytes.data();
    std::byte* prepared = base + (layout.private_prepare ? rank * layout.prepared_bytes : 0);
    std::byte* panels = base + layout.total_bytes - (rank + 1) * layout.rank_bytes;
    if (layout.prepare) {
      ATTEST_CHECK_EQ(w.cols % 32, 0);  // units of 32 columns
      const int64_t units = RoundUp(num_rows, kStripRows) / kStripRows * (w.cols / 32);
      const IndexRange range =
          layout.private_prepare ? IndexRange{0, units} : PartitionRange(units, rank, team.size());
      w.path->prepare({.x = args.x.data,
                       .x_stride = args.x.stride[0],
                       .num_rows = num_rows,
                       .cols = w.cols,
                       .unit_begin = range.begin,
                       .unit_end = range.end,
                       .out = prepared});
      if (!layout.private_prepare) team.Barrier();
    }
    const IndexRange rows = PartitionRange(num_rows, rank % grid.row_parts, grid.row_parts, kRowGranule);
    for (size_t s = 0; s < w.segments.size(); ++s) {
      const Segment& segment = w.segments[s];
      const IndexRange tiles = TilesOfPart(runs, s, rank / grid.row_parts, grid.tile_parts);
      if (tiles.size() <= 0 || rows.size() <= 0) continue;
      const int64_t column = segment.row_begin + tiles.begin * kTileRows;
      w.path->run({.dtype = segment.dtype,
                   .tiles = w.bytes.data() + segment.offset + tiles.begin * segment.tile_bytes,
                   .tile_bytes = segment.tile_bytes,
                   .num_tiles = tiles.size(),
                   .cols = w.cols,
                   .num_outputs = std::min(segment.rows - tiles.begin * kTileRows, tiles.size() * kTileRows),
                   .x = args.x.data,
                   .x_stride = args.x.stride[0],
                   .prepared = layout.prepare ? prepared : nullptr,
                   .num_rows = num_rows,
                   .row_begin = rows.begin,
                   .row_end = rows.end,
                   .y = args.y.data + column,
                   .y_stride = args.y.stride[0],
                   .bias = args.bias == nullptr ? nullptr : args.bias + column,
                   .add = args.epilogue == MatMulEpilogue::kAdd,
                   .rowwise = w.rowwise,
                   .scratch = panels});
    }
  });
}

}  // namespace attest
