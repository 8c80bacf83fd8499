/* attest attention: the C interface.
 *
 * Attention over paged or contiguous K and V, planned once and run many times. A plan fixes shapes, masks and
 * lengths, chooses for each sequence the fastest kernel whose contract covers it, and cuts the work into
 * shares; a run supplies tensors and memory. Nothing is computed approximately or partly in silence: a call
 * is refused with every reason, or every row it owns is written.
 *
 * Numerics, with pictures and a worked example: docs/attention.md. In short, query row i of a sequence with
 * q_len rows and kv_len keys stands at position p = i + kv_len - q_len (bottom-right alignment). With key j:
 * - s = scale * k_descale * <q, k_j>;  softcap c > 0: s = c * tanh(s / c);  ALiBi: s -= slope * |p - j|.
 * - j is visible iff all that is set holds: causal j <= p;  p - window_left <= j <= p + window_right, both
 *   ends included;  j / chunk == p / chunk. Keys j < sink_tokens are exempt from window_left.
 * - out = v_descale * softmax(s) . v, computed in float32; a sink logit adds exp(sink) to the denominator,
 *   once.
 * - lse = natural logarithm of the denominator.
 * - A row that sees no key is 0 with lse -inf (with a sink: 0, sink).
 * - A NaN or an infinity in K or V reaches the rows that see its key and no other.
 *
 * Errors. Every function that can fail returns a status and takes `attest_error** error`, which may be NULL.
 * On failure *error is a list of reasons (field, value, expected) that the caller frees; on success it is
 * NULL. No exception and no signal leaves the library for a wrong argument; what cannot be seen from the
 * arguments (a pointer to memory that is not there) is the caller's duty.
 *
 * Threads. A plan is read-only after it was made: any thread may run it, several at the same time, each run
 * in a workspace of its own. attest_threads may be shared; runs on it take turns. Other objects belong to one
 * thread at a time.
 *
 * Ownership. The library keeps no pointer of the caller's past a call, except those of an
 * attest_attention_call, until attest_attention_end. Plans copy lengths and tables. Objects made by a _create
 * function are freed by the _free function of the same name; _free(NULL) does nothing.
 *
 * Units. Lengths and windows are in tokens. Strides are in elements of the tensor's type, 64-bit; the
 * innermost stride is 1. Sizes that end in _bytes are bytes.
 *
 * Compatibility. Structs start with their size and the version of this header, set by the _default functions
 * below; members are only ever added at the end. A library refuses a struct with members it does not know
 * unless they are 0. attest_tensor never changes.
 */
#ifndef ATTEST_ATTENTION_C_H
#define ATTEST_ATTENTION_C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTEST_API __attribute__((visibility("default")))
#else
#define ATTEST_API
#endif

#define ATTEST_ATTENTION_ABI_VERSION 1u

/* The version of the library that is loaded. */
ATTEST_API uint32_t attest_attention_abi_version(void);
ATTEST_API const char* attest_version(void); /* "0.1.0"; static storage */

/* ---- status and errors ---- */

typedef int32_t attest_status;
enum {
  ATTEST_OK = 0,
  ATTEST_INVALID_ARGUMENT = 1,   /* an argument contradicts itself, another one, or this header */
  ATTEST_UNSUPPORTED = 2,        /* well formed, but no kernel (or not the forced one) computes it here */
  ATTEST_NOT_FOUND = 3,          /* a forced kernel that does not exist */
  ATTEST_RESOURCE_EXHAUSTED = 4, /* memory, or a limit on sizes */
  ATTEST_INTERNAL = 5
};

typedef struct attest_error attest_error;
/* All reasons, one a line, as "field is value, expected ...". Valid until the error is freed. */
ATTEST_API const char* attest_error_text(const attest_error* error);
/* The number of reasons, >= 1, and the parts of one of them. Never NULL for 0 <= index < count. */
ATTEST_API int32_t attest_error_count(const attest_error* error);
ATTEST_API const char* attest_error_field(const attest_error* error, int32_t index);
ATTEST_API const char* attest_error_value(const attest_error* error, int32_t index);
ATTEST_API const char* attest_error_expected(const attest_error* error, int32_t index);
ATTEST_API void attest_error_free(attest_error* error);

/* ---- tensors ---- */

enum attest_dtype {
  ATTEST_F32 = 1,
  ATTEST_F16 = 2,
  ATTEST_BF16 = 3,
  ATTEST_F8_E4M3FN = 4, /* largest 448, NaN 0x7f and 0xff, no infinity */
  ATTEST_F8_E5M2 = 5,
  ATTEST_I8 = 6
};

/* A view: element (i, j, ...) is at data + (i * stride[0] + j * stride[1] + ...) elements. Entries of shape
 * and stride past `rank` are not read. Inputs are not written. data == NULL: absent. Aligned to its element.
 */
typedef struct attest_tensor {
  void* data;
  int32_t dtype; /* enum attest_dtype */
  int32_t rank;  /* 0 to 4 */
  int64_t shape[4];
  int64_t stride[4];
} attest_tensor;

/* Row-major and dense. */
static inline attest_tensor attest_tensor_dense(void* data, int32_t dtype, int32_t rank,
                                                const int64_t* shape) {
  attest_tensor t;
  int64_t step = 1;
  int32_t i;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  for (i = rank - 1; i >= 0 && i < 4; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = step;
    step *= shape[i];
  }
  return t;
}

/* ---- what is computed ---- */

enum attest_kv_layout {
  ATTEST_KV_CONTIGUOUS = 1, /* k [total_k, kv_heads, head_dim]: sequences follow each other */
  ATTEST_KV_PAGED = 2 /* k [num_blocks, kv_heads, block_size, head_dim] through strides: HND and NHD pages */
};
#define ATTEST_NO_LIMIT (-1)

/* Fixed for a kind of layer. */
typedef struct attest_attention_spec {
  uint32_t struct_size;
  uint32_t version;
  int32_t q_heads; /* a multiple of kv_heads; query head h reads KV head h / (q_heads / kv_heads) */
  int32_t kv_heads;
  int32_t head_dim;     /* of q and k, 1 to 4096 */
  int32_t v_head_dim;   /* of v and out, 1 to 4096 */
  int32_t q_dtype;      /* f32, f16 or bf16 */
  int32_t kv_dtype;     /* any */
  int32_t out_dtype;    /* f32, f16 or bf16 */
  int32_t kv_layout;    /* enum attest_kv_layout */
  int32_t block_size;   /* tokens of a page, 1 to 65536; paged only */
  float scale;          /* of q . k, e.g. 1 / sqrt(head_dim) */
  int32_t causal;       /* 0 or 1, as all flags below */
  int32_t window_left;  /* keys left of p that stay visible, p itself not counted; ATTEST_NO_LIMIT */
  int32_t window_right; /* the same to the right */
  int32_t chunk;        /* local attention in chunks of this many tokens; ATTEST_NO_LIMIT */
  int32_t sink_tokens;  /* streaming sinks: the first keys, exempt from window_left; 0: none */
  float softcap;        /* 0: off */
  int32_t has_alibi;
  int32_t has_sinks;
  int32_t has_k_descale;
  int32_t has_v_descale;
  int32_t wants_lse;
  int32_t precise; /* products and softmax in float32 only: kernels that round to bf16 refuse */
} attest_attention_spec;

/* The lengths of one batch. Arrays are copied. */
typedef struct attest_attention_batch {
  uint32_t struct_size;
  uint32_t version;
  int32_t num_seqs;
  int32_t reserved;            /* 0 */
  const int32_t* cu_seqlens_q; /* [num_seqs + 1] first row of each sequence; first 0, monotone */
  int64_t cu_seqlens_q_count;  /* entries that are there */
  const int32_t* kv_lens;      /* [num_seqs] keys of each sequence, those of this step included */
  int64_t kv_lens_count;
  const int32_t*
      block_tables;           /* paged: [num_seqs, block_table_stride] block of key t: entry t / block_size */
  int64_t block_table_stride; /* entries from one sequence's row to the next */
  int64_t block_tables_count; /* entries that are there, over all rows */
  int64_t num_blocks;         /* paged: ids must be below */
  const int32_t* kv_begin;    /* [num_seqs] or NULL: only keys [kv_begin, kv_end) take part (positions and */
  const int32_t* kv_end;      /* masks stay those of the whole sequence): parts of a merge */
  const int32_t* owned_seqs;  /* ascending ids of the sequences to compute; NULL: all. Rows of the others */
  int64_t owned_seqs_count;   /* are not touched */
} attest_attention_batch;

typedef struct attest_attention_options {
  uint32_t struct_size;
  uint32_t version;
  int32_t num_shares; /* >= 1: how many threads may work on one run */
  /* 1 promises the same bits for the same inputs with any num_shares and any number of threads. In this
   * version 0 gives the same bits, too: work is cut by a sequence's own lengths alone. Run to run on one
   * machine the bits are the same in both cases. */
  int32_t deterministic;
  const char* kernels; /* NULL: the fastest that accepts. Or a name, or "decode=NAME,prefill=NAME" */
} attest_attention_options;

static inline attest_attention_spec attest_attention_spec_default(void) {
  attest_attention_spec s;
  memset(&s, 0, sizeof s);
  s.struct_size = (uint32_t)sizeof s;
  s.version = ATTEST_ATTENTION_ABI_VERSION;
  s.q_dtype = ATTEST_F32;
  s.kv_dtype = ATTEST_BF16;
  s.out_dtype = ATTEST_F32;
  s.kv_layout = ATTEST_KV_PAGED;
  s.block_size = 16;
  s.scale = 1.0f;
  s.causal = 1;
  s.window_left = s.window_right = s.chunk = ATTEST_NO_LIMIT;
  return s;
}
static inline attest_attention_batch attest_attention_batch_default(void) {
  attest_attention_batch b;
  memset(&b, 0, sizeof b);
  b.struct_size = (uint32_t)sizeof b;
  b.version = ATTEST_ATTENTION_ABI_VERSION;
  return b;
}
static inline attest_attention_options attest_attention_options_default(void) {
  attest_attention_options o;
  memset(&o, 0, sizeof o);
  o.struct_size = (uint32_t)sizeof o;
  o.version = ATTEST_ATTENTION_ABI_VERSION;
  o.num_shares = 1;
  return o;
}

/* ---- plan ---- */

typedef struct attest_attention_plan attest_attention_plan;

/* `options` may be NULL. Limits: 2^24 query rows and 2^23 work items in one plan, 2^30 keys of a sequence. */
ATTEST_API attest_status attest_attention_plan_create(const attest_attention_spec* spec,
                                                      const attest_attention_batch* batch,
                                                      const attest_attention_options* options,
                                                      attest_attention_plan** plan, attest_error** error);
ATTEST_API void attest_attention_plan_free(attest_attention_plan* plan);

/* Of one run. */
#define ATTEST_WORKSPACE_ALIGNMENT 64
ATTEST_API size_t attest_attention_plan_workspace_bytes(const attest_attention_plan* plan);
ATTEST_API int32_t attest_attention_plan_num_shares(const attest_attention_plan* plan);

/* Which kernel computes what: one route per group of sequences. Strings are static. */
typedef struct attest_attention_route {
  const char* phase;  /* "decode", "prefill", "extend", "uniform_decode" */
  const char* kernel; /* "attention_decode_avx512" */
  int32_t num_seqs;
  int32_t num_tokens;
} attest_attention_route;
ATTEST_API int32_t attest_attention_plan_num_routes(const attest_attention_plan* plan);
/* Of an index out of range: empty strings and zeros. */
ATTEST_API attest_attention_route attest_attention_plan_route(const attest_attention_plan* plan,
                                                              int32_t index);

/* For one sequence of these lengths: which kernel runs, and why each other does not, one a line. Writes at
 * most `capacity` bytes with the final 0; *needed (may be NULL) is the size of the whole text with it. */
ATTEST_API attest_status attest_attention_explain(const attest_attention_spec* spec, int32_t q_len,
                                                  int32_t kv_len, const char* kernels, char* text,
                                                  size_t capacity, size_t* needed, attest_error** error);

/* ---- run ---- */

/* T: rows of the batch, cu_seqlens_q[num_seqs]. Tensors may have more rows (padding); those are not touched.
 * out, lse and the workspace overlap nothing else. */
typedef struct attest_attention_args {
  uint32_t struct_size;
  uint32_t version;
  attest_tensor q;   /* [>= T, q_heads, head_dim] */
  attest_tensor out; /* [>= T, q_heads, v_head_dim] */
  attest_tensor lse; /* f32 [q_heads, >= T], any strides; iff wants_lse */
  attest_tensor k; /* paged [num_blocks, kv_heads, block_size, head_dim]; or [total_k, kv_heads, head_dim] */
  attest_tensor v; /* the same with v_head_dim */
  attest_tensor alibi_slopes; /* f32 [q_heads], iff has_alibi */
  attest_tensor sinks;        /* f32 [q_heads], iff has_sinks: logits compared with final scores */
  attest_tensor
      k_descale; /* f32 [num_seqs, kv_heads], iff has_k_descale; strides 0: per KV head, per tensor */
  attest_tensor v_descale; /* f32 [num_seqs, kv_heads], iff has_v_descale */
  void* workspace;         /* aligned to ATTEST_WORKSPACE_ALIGNMENT; contents do not matter */
  size_t workspace_bytes;  /* >= attest_attention_plan_workspace_bytes */
} attest_attention_args;

static inline attest_attention_args attest_attention_args_default(void) {
  attest_attention_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = (uint32_t)sizeof a;
  a.version = ATTEST_ATTENTION_ABI_VERSION;
  return a;
}

/* On the calling thread. */
ATTEST_API attest_status attest_attention_run(const attest_attention_plan* plan,
                                              const attest_attention_args* args, attest_error** error);

/* On the library's threads. num_threads >= 1 counts the caller, who takes part. pin != 0 binds thread i to
 * the i-th CPU this process may use. */
typedef struct attest_threads attest_threads;
ATTEST_API attest_status attest_threads_create(int32_t num_threads, int32_t pin, attest_threads** threads,
                                               attest_error** error);
ATTEST_API void attest_threads_free(attest_threads* threads);
ATTEST_API attest_status attest_attention_run_threads(const attest_attention_plan* plan,
                                                      const attest_attention_args* args,
                                                      attest_threads* threads, attest_error** error);

/* On the caller's threads, through its own parallel loop, which must call body(state, i) once for every i in
 * [0, count), on any threads, in any order, and return when all have returned. */
typedef void (*attest_parallel_for)(void* context, int32_t count, void (*body)(void* state, int32_t index),
                                    void* state);
ATTEST_API attest_status attest_attention_run_parallel(const attest_attention_plan* plan,
                                                       const attest_attention_args* args,
                                                       attest_parallel_for parallel_for, void* context,
                                                       attest_error** error);

/* On the caller's threads, share by share. Begin checks everything and lives in the workspace; then each
 * share in [0, num_shares) runs at most once, on any thread (there is no barrier between shares: one thread
 * may run them one after another; shares that never run leave their work to the others). When every share
 * that was started has returned, and at least one was started, End closes the call, and the outputs are
 * complete. */
typedef struct attest_attention_call attest_attention_call;
ATTEST_API attest_status attest_attention_begin(const attest_attention_plan* plan,
                                                const attest_attention_args* args,
                                                attest_attention_call** call, attest_error** error);
ATTEST_API void attest_attention_run_share(attest_attention_call* call, int32_t share);
ATTEST_API void attest_attention_end(attest_attention_call* call);

/* ---- states ---- */

/* Merges attention over disjoint sets of keys: chunks of a context, a shared prefix and its suffixes. Weights
 * are exp(lse_i - max); an lse of -inf (or +inf, as some libraries mark it) is the empty set, whose out is
 * not read. */
typedef struct attest_merge_args {
  uint32_t struct_size;
  uint32_t version;
  const attest_tensor* state_out; /* [num_states] of [T, heads, dim], f32, f16 or bf16, any strides outside */
  const attest_tensor* state_lse; /* [num_states] of f32 [heads, T], any strides */
  int32_t num_states;             /* >= 1 */
  int32_t reserved;               /* 0 */
  attest_tensor out;              /* [T, heads, dim]; may be exactly one of state_out */
  attest_tensor lse;              /* f32 [heads, T], or absent */
  attest_tensor sinks;            /* f32 [heads] sink logits that no state has counted, or absent */
} attest_merge_args;
static inline attest_merge_args attest_merge_args_default(void) {
  attest_merge_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = (uint32_t)sizeof a;
  a.version = ATTEST_ATTENTION_ABI_VERSION;
  return a;
}
/* `threads` may be NULL: the calling thread alone. So below. */
ATTEST_API attest_status attest_merge_states(const attest_merge_args* args, attest_threads* threads,
                                             attest_error** error);

/* ---- pages ---- */

/* Writes rows of K and V into pages, converted: stored = value / scale, to the nearest, to even on a tie. fp8
 * and int8 saturate, infinities included; fp8 keeps NaN. int8 cannot: NaN is stored as 0 and the call returns
 * ATTEST_INVALID_ARGUMENT with their number after everything was written. */
typedef struct attest_append_kv_args {
  uint32_t struct_size;
  uint32_t version;
  attest_tensor k;      /* [num_tokens, kv_heads, head_dim] f32, f16 or bf16 */
  attest_tensor v;      /* [num_tokens, kv_heads, v_head_dim] of the same type */
  const int64_t* slots; /* [num_tokens] block * block_size + offset; negative: not written; no slot twice */
  int64_t slots_count;
  attest_tensor k_pages; /* [num_blocks, kv_heads, block_size, head_dim] */
  attest_tensor v_pages; /* [num_blocks, kv_heads, block_size, v_head_dim] of the same type */
  attest_tensor
      k_scale; /* f32 [num_seqs, kv_heads], > 0 and finite; strides 0: per head, per tensor. Absent: 1 */
  attest_tensor v_scale;     /* the descales of the attention call */
  const int32_t* token_seqs; /* [num_tokens] sequence of each token; NULL: all are sequence 0 */
  int64_t token_seqs_count;
} attest_append_kv_args;
static inline attest_append_kv_args attest_append_kv_args_default(void) {
  attest_append_kv_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = (uint32_t)sizeof a;
  a.version = ATTEST_ATTENTION_ABI_VERSION;
  return a;
}
ATTEST_API attest_status attest_append_kv(const attest_append_kv_args* args, attest_threads* threads,
                                          attest_error** error);

/* Copies whole blocks of K and V: pairs[2 * i] to pairs[2 * i + 1]. No block is written twice, and none that
 * is written is read. */
ATTEST_API attest_status attest_copy_blocks(const attest_tensor* k_pages, const attest_tensor* v_pages,
                                            const int64_t* pairs, int64_t num_pairs, attest_threads* threads,
                                            attest_error** error);

#ifdef __cplusplus
}
#endif

#endif /* ATTEST_ATTENTION_C_H */
