/* A template for putting your kernel on trial. It adapts a function with the usual signature of a dense
 * varlen prefill, my_attention below: float32, heads of equal size, causal. Replace my_attention by a call of
 * your kernel, and make check say what yours cannot do; delete the limits that it does not have.
 *
 * Build: cc -O2 -shared -fPIC template.c -o my_kernel.so -lm
 * Try:   attest conform --library ./my_kernel.so */
#include <attest/conform_kernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel: q [tokens, q_heads, dim], k and v [keys, kv_heads, dim], dense; rows of sequence s are cu_q[s]
 * .. cu_q[s + 1], its keys cu_k[s] .. cu_k[s + 1], aligned at their ends. */
static void my_attention(const float* q, const float* k, const float* v, float* out, const int32_t* cu_q,
                         const int32_t* cu_k, int32_t num_seqs, int32_t q_heads, int32_t kv_heads,
                         int32_t dim, float scale) {
  int32_t s, i, h, d;
  for (s = 0; s < num_seqs; ++s) {
    const int32_t q_len = cu_q[s + 1] - cu_q[s], kv_len = cu_k[s + 1] - cu_k[s];
    for (i = 0; i < q_len; ++i) {
      for (h = 0; h < q_heads; ++h) {
        const float* query = q + ((int64_t)(cu_q[s] + i) * q_heads + h) * dim;
        float* to = out + ((int64_t)(cu_q[s] + i) * q_heads + h) * dim;
        const int32_t last = i + kv_len - q_len; /* the last key the row sees */
        float max = -INFINITY, total = 0.0f;
        int32_t j;
        memset(to, 0, sizeof(float) * (size_t)dim);
        for (j = 0; j <= last; ++j) { /* online softmax: one pass over the keys */
          const int64_t at = ((int64_t)(cu_k[s] + j) * kv_heads + h / (q_heads / kv_heads)) * dim;
          float score = 0.0f, grown, weight;
          for (d = 0; d < dim; ++d) score += query[d] * k[at + d];
          score *= scale;
          grown = fmaxf(max, score);
          weight = expf(score - grown);
          total = total * expf(max - grown) + weight;
          for (d = 0; d < dim; ++d) to[d] = to[d] * expf(max - grown) + weight * v[at + d];
          max = grown;
        }
        for (d = 0; d < dim && total > 0.0f; ++d) to[d] /= total;
      }
    }
  }
}

static int refuse(char* reason, size_t reason_size, const char* why) {
  snprintf(reason, reason_size, "%s", why);
  return 1;
}

/* "field: what is needed". Whatever this function does not refuse, the kernel must compute. */
static int check(const struct attest_conform_problem* p, char* reason, size_t reason_size) {
  if (p->q_dtype != ATTEST_CONFORM_F32 || p->out_dtype != ATTEST_CONFORM_F32)
    return refuse(reason, reason_size, "q_dtype: f32 is needed, for the output too");
  if (p->kv_dtype != ATTEST_CONFORM_F32) return refuse(reason, reason_size, "kv_dtype: f32 is needed");
  if (p->v_head_dim != p->head_dim) return refuse(reason, reason_size, "v_head_dim: head_dim is needed");
  if (p->causal == 0) return refuse(reason, reason_size, "causal: 1 is needed");
  if (p->has_window_left != 0) return refuse(reason, reason_size, "window_left: no limit is needed");
  if (p->has_chunk != 0) return refuse(reason, reason_size, "chunk: off is needed");
  if (p->softcap != 0.0f) return refuse(reason, reason_size, "softcap: 0 is needed");
  if (p->has_alibi != 0) return refuse(reason, reason_size, "alibi: off is needed");
  if (p->has_sinks != 0) return refuse(reason, reason_size, "sinks: off is needed");
  if (p->has_k_descale != 0 || p->has_v_descale != 0)
    return refuse(reason, reason_size, "k_descale: none is needed, nor of V");
  if (p->wants_lse != 0) return refuse(reason, reason_size, "wants_lse: 0 is needed");
  return 0;
}

/* Gathers strided, paged tensors into the dense ones that my_attention takes, and scatters its answer. */
static int run(const struct attest_conform_call* call, char* error, size_t error_size) {
  const struct attest_conform_problem* p = call->problem;
  const size_t row = sizeof(float) * (size_t)p->head_dim;
  int32_t s, h;
  int64_t keys = 0, t;
  int32_t* cu_k = (int32_t*)malloc(sizeof(int32_t) * (size_t)(call->num_seqs + 1));
  float *q = NULL, *k = NULL, *v = NULL, *out = NULL;
  int failed = 1;
  if (cu_k != NULL) {
    cu_k[0] = 0;
    for (s = 0; s < call->num_seqs; ++s) cu_k[s + 1] = cu_k[s] + call->kv_len[s];
    keys = cu_k[call->num_seqs];
    q = (float*)malloc((size_t)call->num_tokens * (size_t)p->q_heads * row + 1);
    k = (float*)malloc((size_t)keys * (size_t)p->kv_heads * row + 1);
    v = (float*)malloc((size_t)keys * (size_t)p->kv_heads * row + 1);
    out = (float*)malloc((size_t)call->num_tokens * (size_t)p->q_heads * row + 1);
  }
  if (q != NULL && k != NULL && v != NULL && out != NULL) {
    for (t = 0; t < call->num_tokens; ++t)
      for (h = 0; h < p->q_heads; ++h)
        memcpy(q + (t * p->q_heads + h) * p->head_dim,
               (const float*)call->q + t * call->q_token_stride + h * call->q_head_stride, row);
    for (s = 0; s < call->num_seqs; ++s) {
      for (t = 0; t < call->kv_len[s]; ++t) {
        for (h = 0; h < p->kv_heads; ++h) {
          int64_t k_at, v_at;
          if (call->k_begin != NULL) {
            k_at = (call->k_begin[s] + t) * call->k_token_stride;
            v_at = (call->k_begin[s] + t) * call->v_token_stride;
          } else {
            const int64_t block = call->block_table[s * call->table_stride + t / p->block_size];
            k_at = block * call->k_block_stride + t % p->block_size * call->k_token_stride;
            v_at = block * call->v_block_stride + t % p->block_size * call->v_token_stride;
          }
          memcpy(k + ((cu_k[s] + t) * p->kv_heads + h) * p->head_dim,
                 (const float*)call->k + k_at + h * call->k_head_stride, row);
          memcpy(v + ((cu_k[s] + t) * p->kv_heads + h) * p->head_dim,
                 (const float*)call->v + v_at + h * call->v_head_stride, row);
        }
      }
    }
    my_attention(q, k, v, out, call->cu_seqlens_q, cu_k, call->num_seqs, p->q_heads, p->kv_heads, p->head_dim,
                 p->scale);
    for (t = 0; t < call->num_tokens; ++t)
      for (h = 0; h < p->q_heads; ++h)
        memcpy((float*)call->out + t * call->out_token_stride + h * call->out_head_stride,
               out + (t * p->q_heads + h) * p->head_dim, row);
    failed = 0;
  } else {
    snprintf(error, error_size, "out of memory for %lld keys", (long long)keys);
  }
  free(cu_k), free(q), free(k), free(v), free(out);
  return failed;
}

const struct attest_conform_kernel* attest_conform_kernel_v1(int32_t index) {
  static const struct attest_conform_kernel kernel = {sizeof(struct attest_conform_kernel),
                                                      ATTEST_CONFORM_ABI_VERSION,
                                                      ATTEST_CONFORM_ARITHMETIC_F32,
                                                      "my_kernel",
                                                      check,
                                                      run};
  return index == 0 ? &kernel : NULL;
}
