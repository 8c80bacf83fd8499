/* A naive attention kernel behind the interface of attest/conform_kernel.h: every feature, float32, one row
 * at a time. It is the body of examples/conform/naive.c, of the template's neighbours, and, with one line
 * changed each, of the five broken kernels beside it: a macro named after the failure replaces the right
 * line. */
#ifndef ATTEST_EXAMPLES_CONFORM_NAIVE_KERNEL_H
#define ATTEST_EXAMPLES_CONFORM_NAIVE_KERNEL_H

#include <attest/conform_kernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float naive_from_fields(uint32_t sign, int exponent, int fraction, int bias, int fraction_bits) {
  const float size = exponent == 0
                         ? ldexpf((float)fraction, 1 - bias - fraction_bits)
                         : ldexpf((float)(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
  return sign != 0 ? -size : size;
}

/* Element `index` of a tensor, as a float. */
static float naive_load(const void* data, int32_t dtype, int64_t index) {
  switch (dtype) {
    case ATTEST_CONFORM_F32:
      return ((const float*)data)[index];
    case ATTEST_CONFORM_BF16: {
      const uint32_t bits = (uint32_t)((const uint16_t*)data)[index] << 16;
      float value;
      memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case ATTEST_CONFORM_F16: {
      const uint32_t bits = ((const uint16_t*)data)[index];
      const int exponent = (int)(bits >> 10) & 31, fraction = (int)bits & 1023;
      if (exponent == 31) return fraction != 0 ? NAN : (bits >> 15) != 0 ? -INFINITY : INFINITY;
      return naive_from_fields(bits >> 15, exponent, fraction, 15, 10);
    }
    case ATTEST_CONFORM_F8_E4M3FN: {
      const uint32_t bits = ((const uint8_t*)data)[index];
      if ((bits & 127u) == 127u) return NAN;
      return naive_from_fields(bits >> 7, (int)(bits >> 3) & 15, (int)bits & 7, 7, 3);
    }
    case ATTEST_CONFORM_F8_E5M2: {
      const uint32_t bits = ((const uint8_t*)data)[index];
      const int exponent = (int)(bits >> 2) & 31, fraction = (int)bits & 3;
      if (exponent == 31) return fraction != 0 ? NAN : (bits >> 7) != 0 ? -INFINITY : INFINITY;
      return naive_from_fields(bits >> 7, exponent, fraction, 15, 2);
    }
    default:
      return (float)((const int8_t*)data)[index];
  }
}

/* Rounds to nearest even. */
static void naive_store(void* data, int32_t dtype, int64_t index, float value) {
  uint32_t bits;
  if (dtype == ATTEST_CONFORM_F32) {
    ((float*)data)[index] = value;
    return;
  }
  if (value != value) { /* rounding could carry a NaN into the exponent and out of it */
    ((uint16_t*)data)[index] = dtype == ATTEST_CONFORM_BF16 ? 0x7fc0u : 0x7e00u;
    return;
  }
  memcpy(&bits, &value, sizeof(bits));
  if (dtype == ATTEST_CONFORM_BF16) {
    ((uint16_t*)data)[index] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return;
  }
  { /* f16: scale the fraction so that it is an integer, and let the machine round it */
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    const float size = fabsf(value);
    int exponent;
    long fraction;
    uint16_t half;
    if (size >= 65520.0f) {
      half = 0x7c00u;
    } else if (size < 6.103515625e-05f) {
      half = (uint16_t)lrintf(size * 16777216.0f);
    } else {
      frexpf(size, &exponent);
      fraction = lrintf(ldexpf(size, 11 - exponent)); /* 1024 .. 2048 */
      half = (uint16_t)(((exponent + 14) << 10) + (int)(fraction - 1024));
    }
    ((uint16_t*)data)[index] = (uint16_t)(sign | half);
  }
}

static int naive_check(const struct attest_conform_problem* problem, char* reason, size_t reason_size) {
  /* The naive kernel takes everything. A kernel with limits names the field and what it needs, as here. */
  if (problem->head_dim > 4096) {
    snprintf(reason, reason_size, "head_dim: at most 4096 is needed");
    return 1;
  }
  return 0;
}

static int64_t naive_key(const struct attest_conform_call* call, int value, int32_t seq, int32_t kv_head,
                         int64_t key) {
  const int64_t head_stride = value ? call->v_head_stride : call->k_head_stride;
  const int64_t token_stride = value ? call->v_token_stride : call->k_token_stride;
  const int32_t block_size = call->problem->block_size;
  if (call->k_begin != NULL) return (call->k_begin[seq] + key) * token_stride + kv_head * head_stride;
  return call->block_table[seq * call->table_stride + key / block_size] *
             (value ? call->v_block_stride : call->k_block_stride) +
         kv_head * head_stride + key % block_size * token_stride;
}

static int naive_sees(const struct attest_conform_problem* p, int64_t row, int64_t key) {
  if (p->causal != 0 && key > row) return 0;
  if (p->has_window_right != 0 && key > row + p->window_right) return 0;
#ifdef BROKEN_WINDOW_OFF_BY_ONE
  /* The window is taken as a count of keys, the row itself included, and 0 as "no window". */
  if (p->has_window_left != 0 && p->window_left != 0 && key < row - p->window_left + 1 &&
      key >= p->sink_tokens)
    return 0;
#else
  if (p->has_window_left != 0 && key < row - p->window_left && key >= p->sink_tokens) return 0;
#endif
  if (p->has_chunk != 0 && (row < 0 || key / p->chunk != row / p->chunk)) return 0;
  return 1;
}

static int naive_run(const struct attest_conform_call* call, char* error, size_t error_size) {
  const struct attest_conform_problem* p = call->problem;
  const int32_t group = p->q_heads / p->kv_heads;
  int32_t seq, i, head, d;
  int64_t longest = 1;
  float *scores, *query, *sum;
  for (seq = 0; seq < call->num_seqs; ++seq)
    if (call->kv_len[seq] > longest) longest = call->kv_len[seq];
  scores = (float*)malloc(sizeof(float) * (size_t)longest);
  query = (float*)malloc(sizeof(float) * (size_t)p->head_dim);
  sum = (float*)malloc(sizeof(float) * (size_t)p->v_head_dim);
  if (scores == NULL || query == NULL || sum == NULL) {
    snprintf(error, error_size, "out of memory for %lld keys", (long long)longest);
    free(scores), free(query), free(sum);
    return 1;
  }
  for (seq = 0; seq < call->num_seqs; ++seq) {
    const int32_t begin = call->cu_seqlens_q[seq];
#ifdef BROKEN_CU_SEQLENS_SHORT
    /* The offsets were allocated with one entry per sequence: the last end is missing and reads as 0. */
    const int32_t end = seq + 1 < call->num_seqs ? call->cu_seqlens_q[seq + 1] : 0;
#else
    const int32_t end = call->cu_seqlens_q[seq + 1];
#endif
    const int32_t q_len = end - begin, kv_len = call->kv_len[seq];
#ifdef BROKEN_SKIP_THRESHOLD
    /* The shortest query length of the batch is handed over as a skip threshold, which is inclusive. */
    if (q_len <= p->min_q_len) continue;
#endif
    for (i = 0; i < q_len; ++i) {
      const int64_t row = i + (int64_t)kv_len - q_len, token = begin + (int64_t)i;
      for (head = 0; head < p->q_heads; ++head) {
        const int32_t kv_head = head / group;
        float k_scale = 1.0f, v_scale = 1.0f, max = -INFINITY, total = 0.0f;
        const int64_t q_at = token * call->q_token_stride + head * call->q_head_stride;
        const int64_t out_at = token * call->out_token_stride + head * call->out_head_stride;
        int64_t key;
#ifdef BROKEN_DESCALE_ROW_SHORT
        /* One row of descales too few was copied: the last sequence keeps the default. */
        const int has_row = seq + 1 < call->num_seqs;
#else
        const int has_row = 1;
#endif
        if (call->k_descale != NULL && has_row)
          k_scale = call->k_descale[seq * call->k_descale_seq_stride + kv_head * call->k_descale_head_stride];
        if (call->v_descale != NULL && has_row)
          v_scale = call->v_descale[seq * call->v_descale_seq_stride + kv_head * call->v_descale_head_stride];
        for (d = 0; d < p->head_dim; ++d) query[d] = naive_load(call->q, p->q_dtype, q_at + d);
        if (call->sinks != NULL) max = call->sinks[head];
        for (key = 0; key < kv_len; ++key) {
          float dot = 0.0f;
          int64_t at;
          scores[key] = -INFINITY;
          if (!naive_sees(p, row, key)) continue;
          at = naive_key(call, 0, seq, kv_head, key);
          for (d = 0; d < p->head_dim; ++d) dot += query[d] * naive_load(call->k, p->kv_dtype, at + d);
          dot *= p->scale * k_scale;
          if (p->softcap > 0.0f) dot = p->softcap * tanhf(dot / p->softcap);
          if (call->alibi_slopes != NULL) dot -= call->alibi_slopes[head] * fabsf((float)(row - key));
          scores[key] = dot;
          if (dot > max || dot != dot) max = dot;
        }
        for (d = 0; d < p->v_head_dim; ++d) sum[d] = 0.0f;
        if (max != -INFINITY) {
          if (call->sinks != NULL) total = expf(call->sinks[head] - max);
          for (key = 0; key < kv_len; ++key) {
            float weight;
            int64_t at;
            if (!naive_sees(p, row, key)) continue;
            weight = expf(scores[key] - max);
            total += weight;
            at = naive_key(call, 1, seq, kv_head, key);
            for (d = 0; d < p->v_head_dim; ++d) sum[d] += weight * naive_load(call->v, p->kv_dtype, at + d);
          }
        }
#ifdef BROKEN_LOOP_COUNT
        /* Four vectors of 16 are stored per step, and the number of steps is an integer division. */
        for (d = 0; d < p->v_head_dim / 16 / 4 * 64; ++d)
#else
        for (d = 0; d < p->v_head_dim; ++d)
#endif
          naive_store(call->out, p->out_dtype, out_at + d,
                      max == -INFINITY ? 0.0f : sum[d] / total * v_scale);
        if (call->lse != NULL) {
          call->lse[head * call->lse_head_stride + token * call->lse_token_stride] =
              max == -INFINITY ? -INFINITY : max + logf(total);
        }
      }
    }
  }
  free(scores), free(query), free(sum);
  return 0;
}

#endif /* ATTEST_EXAMPLES_CONFORM_NAIVE_KERNEL_H */
