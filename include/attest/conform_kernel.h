/* The interface through which `attest conform --library FILE.so` puts an attention kernel on trial.
 *
 * A shared library exports one function, attest_conform_kernel_v1. For each index from 0 it returns a
 * description of one kernel, and NULL past the last. The kernel declares, problem by problem, what it
 * refuses; everything else it must compute. The suite believes nothing: buffers have exactly the stated size
 * between guards, outputs hold garbage before the call, everything that must not be read holds NaN.
 *
 * Plain C11. All structs are owned by the suite and valid for the call only. Strides are in elements of the
 * tensor's type, 64-bit; the innermost stride is always 1. Calls come from one thread at a time, in a child
 * process; a crash or a call that does not return is reported as a failure of the running case.
 *
 * The numerics are those of docs/attention.md, section "The canon". In short: query row i of a sequence with
 * q_len rows and kv_len keys stands at p = i + kv_len - q_len; s = scale * k_descale * <q, k_j>; then softcap
 * c * tanh(s / c); then ALiBi s -= slope * |p - j|; j is visible iff causal (j <= p), p - left <= j <= p +
 * right, and j / chunk == p / chunk, where set (keys j < sink_tokens are exempt from left only); softmax with
 * an optional sink logit in the denominator; output = v_descale * sum; a row that sees no key is 0 with lse
 * -inf (with a sink: 0, and the sink). LSE is the natural logarithm.
 */
#ifndef ATTEST_CONFORM_KERNEL_H
#define ATTEST_CONFORM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTEST_CONFORM_ABI_VERSION 1u

enum attest_conform_dtype {
  ATTEST_CONFORM_F32 = 1,
  ATTEST_CONFORM_F16 = 2,
  ATTEST_CONFORM_BF16 = 3,
  ATTEST_CONFORM_F8_E4M3FN = 4, /* largest 448, NaN 0x7f and 0xff, no infinity */
  ATTEST_CONFORM_F8_E5M2 = 5,
  ATTEST_CONFORM_I8 = 6
};

enum attest_conform_layout {
  ATTEST_CONFORM_CONTIGUOUS = 1, /* k [sum of kv_len, kv_heads, head_dim] through strides */
  ATTEST_CONFORM_PAGED_HND = 2,  /* slots of one head are consecutive: slot stride == head_dim */
  ATTEST_CONFORM_PAGED_NHD = 3   /* any strides, the innermost is 1 */
};

enum attest_conform_phase {
  ATTEST_CONFORM_DECODE = 1,         /* every q_len == 1 */
  ATTEST_CONFORM_PREFILL = 2,        /* every q_len == kv_len */
  ATTEST_CONFORM_EXTEND = 3,         /* rows behind a context, of any lengths */
  ATTEST_CONFORM_UNIFORM_DECODE = 4, /* 2 <= q_len <= 8 < kv_len; lengths may differ between sequences */
  ATTEST_CONFORM_MIXED = 5           /* several of the above in one call */
};

/* What a kernel rounds; the tolerance is twice the error of a plain implementation that rounds the same. */
enum attest_conform_arithmetic {
  ATTEST_CONFORM_ARITHMETIC_F32 = 1, /* products, sums and softmax in float32 or better */
  ATTEST_CONFORM_ARITHMETIC_BF16 = 2 /* queries and softmax weights rounded to bf16; sums in float32 */
};

/* Everything a kernel may refuse by. A limit is set iff its has_ member is 1. */
struct attest_conform_problem {
  size_t struct_size; /* bytes of this struct as the caller knows it */
  int32_t phase;      /* enum attest_conform_phase */
  int32_t num_seqs;   /* sequences with at least one row; 0: lengths are not known yet, and are 0 below */
  int32_t min_q_len, max_q_len;
  int32_t min_kv_len, max_kv_len;
  int32_t q_heads, kv_heads;            /* q_heads is a multiple of kv_heads */
  int32_t head_dim, v_head_dim;         /* v_head_dim: of V and of the output */
  int32_t q_dtype, kv_dtype, out_dtype; /* enum attest_conform_dtype */
  int32_t layout;                       /* enum attest_conform_layout */
  int32_t block_size;                   /* tokens of a page; 0 with contiguous K and V */
  float scale;
  int32_t causal;
  int32_t has_window_left, window_left;   /* keys left of p that stay visible, p itself not counted */
  int32_t has_window_right, window_right; /* the same to the right */
  int32_t has_chunk, chunk;               /* local attention in chunks of this many tokens */
  int32_t sink_tokens;                    /* the first keys, exempt from window_left; 0: none */
  float softcap;                          /* 0: off */
  int32_t has_alibi, has_sinks, has_k_descale, has_v_descale, wants_lse;
};

/* The tensors of one call. K and V element (block, kv_head, slot, d) is at block * block_stride + kv_head *
 * head_stride + slot * token_stride + d; contiguous: (k_begin[seq] + key) * token_stride + kv_head *
 * head_stride + d. Key t of a sequence is in block block_table[seq * table_stride + t / block_size], slot t %
 * block_size. Table entries past the last key hold ids that are no block. */
struct attest_conform_call {
  size_t struct_size;
  const struct attest_conform_problem* problem;
  int32_t num_seqs;            /* all sequences of the call, empty ones included */
  int32_t num_tokens;          /* cu_seqlens_q[num_seqs] */
  const int32_t* cu_seqlens_q; /* [num_seqs + 1], first 0 */
  const int32_t* kv_len;       /* [num_seqs] */
  const void* q;               /* [num_tokens, q_heads, head_dim] */
  int64_t q_token_stride, q_head_stride;
  const void* k;
  int64_t k_block_stride, k_head_stride, k_token_stride;
  const void* v;
  int64_t v_block_stride, v_head_stride, v_token_stride;
  int64_t num_blocks;         /* paged */
  const int32_t* block_table; /* paged: [num_seqs, table_stride] */
  int64_t table_stride;       /* paged: entries from one sequence's row to the next */
  const int32_t* k_begin;     /* contiguous: [num_seqs + 1], tokens */
  const float* alibi_slopes;  /* [q_heads] or NULL */
  const float* sinks;         /* [q_heads] or NULL */
  const float* k_descale;     /* (seq, kv_head) through strides, which may be 0; or NULL */
  int64_t k_descale_seq_stride, k_descale_head_stride;
  const float* v_descale;
  int64_t v_descale_seq_stride, v_descale_head_stride;
  void* out; /* [num_tokens, q_heads, v_head_dim]: every row must be written */
  int64_t out_token_stride, out_head_stride;
  float* lse; /* [q_heads, num_tokens] through strides, or NULL */
  int64_t lse_head_stride, lse_token_stride;
  /* Into how many parts the keys of a row shall be cut and merged; 0: as the kernel likes. More parts than
   * keys are asked for, too. A kernel that cannot be told ignores it. */
  int32_t num_splits;
};

struct attest_conform_kernel {
  size_t struct_size;   /* sizeof(struct attest_conform_kernel) of the library's header */
  uint32_t abi_version; /* ATTEST_CONFORM_ABI_VERSION */
  int32_t arithmetic;   /* enum attest_conform_arithmetic */
  const char* name;     /* as it appears in the report */
  /* 0: the kernel will compute it. Otherwise writes why not, at most reason_size bytes with the final 0:
   * "field: why", e.g. "head_dim: a multiple of 16 is needed". */
  int (*check)(const struct attest_conform_problem* problem, char* reason, size_t reason_size);
  /* 0: every row was written. Otherwise writes what went wrong; that is a failure, since check accepted. */
  int (*run)(const struct attest_conform_call* call, char* error, size_t error_size);
};

/* Exported by the library. */
const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index);

#ifdef __cplusplus
}
#endif

#endif /* ATTEST_CONFORM_KERNEL_H */
