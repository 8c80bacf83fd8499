/* One decode step over a paged KV cache: append the keys and values of nine tokens, plan, run, read the
 * answer.
 *
 *   cc -std=c11 decode.c $(pkg-config --cflags --libs attest-attention) -o decode && ./decode
 */
#include <attest/attention_c.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeads = 2, kDim = 32, kBlockSize = 16, kBlocks = 3, kKeys = 9 };

/* Prints every reason and ends the program; a server would answer its client with them instead. */
static void must(attest_status status, attest_error* error, const char* what) {
  if (status == ATTEST_OK) return;
  fprintf(stderr, "%s:\n%s\n", what, attest_error_text(error));
  attest_error_free(error);
  exit(1);
}

int main(void) {
  static float k_cache[kBlocks * kHeads * kBlockSize * kDim], v_cache[kBlocks * kHeads * kBlockSize * kDim];
  static float k[kKeys * kHeads * kDim], v[kKeys * kHeads * kDim], q[kHeads * kDim], out[kHeads * kDim];
  const int64_t page_shape[] = {kBlocks, kHeads, kBlockSize, kDim}, rows[] = {kKeys, kHeads, kDim};
  const int64_t one_row[] = {1, kHeads, kDim};
  int64_t slots[kKeys];
  attest_error* error = NULL;

  /* Every key is alike, so every key weighs the same; the values count: 0, 1, ..., 8. */
  for (int t = 0; t < kKeys; ++t) {
    slots[t] = 2 * kBlockSize + t; /* the sequence owns block 2 */
    for (int i = 0; i < kHeads * kDim; ++i) {
      k[t * kHeads * kDim + i] = 0.5f;
      v[t * kHeads * kDim + i] = (float)t;
    }
  }
  for (int i = 0; i < kHeads * kDim; ++i) q[i] = 1.0f;

  attest_append_kv_args append = attest_append_kv_args_default();
  append.k = attest_tensor_dense(k, ATTEST_F32, 3, rows);
  append.v = attest_tensor_dense(v, ATTEST_F32, 3, rows);
  append.slots = slots;
  append.slots_count = kKeys;
  append.k_pages = attest_tensor_dense(k_cache, ATTEST_F32, 4, page_shape);
  append.v_pages = attest_tensor_dense(v_cache, ATTEST_F32, 4, page_shape);
  must(attest_append_kv(&append, NULL, &error), error, "append");

  attest_attention_spec spec = attest_attention_spec_default();
  spec.q_heads = spec.kv_heads = kHeads;
  spec.head_dim = spec.v_head_dim = kDim;
  spec.kv_dtype = ATTEST_F32;
  spec.block_size = kBlockSize;
  spec.scale = 0.17677669f; /* 1 / sqrt(kDim) */

  /* One sequence with one new row, which is the last of nine keys. */
  const int32_t cu_seqlens_q[] = {0, 1}, kv_lens[] = {kKeys}, block_table[] = {2};
  attest_attention_batch batch = attest_attention_batch_default();
  batch.num_seqs = 1;
  batch.cu_seqlens_q = cu_seqlens_q;
  batch.cu_seqlens_q_count = 2;
  batch.kv_lens = kv_lens;
  batch.kv_lens_count = 1;
  batch.block_tables = block_table;
  batch.block_table_stride = 1;
  batch.block_tables_count = 1;
  batch.num_blocks = kBlocks;

  attest_attention_plan* plan = NULL;
  must(attest_attention_plan_create(&spec, &batch, NULL, &plan, &error), error, "plan");

  attest_attention_args args = attest_attention_args_default();
  args.q = attest_tensor_dense(q, ATTEST_F32, 3, one_row);
  args.out = attest_tensor_dense(out, ATTEST_F32, 3, one_row);
  args.k = append.k_pages;
  args.v = append.v_pages;
  args.workspace_bytes = attest_attention_plan_workspace_bytes(plan);
  args.workspace = aligned_alloc(ATTEST_WORKSPACE_ALIGNMENT, args.workspace_bytes); /* a multiple of 64 */
  must(attest_attention_run(plan, &args, &error), error, "run");

  printf("attest %s: %s computed %g (expected 4, the mean of 0..8)\n", attest_version(),
         attest_attention_plan_route(plan, 0).kernel, (double)out[0]);
  free(args.workspace);
  attest_attention_plan_free(plan);
  return out[0] > 3.999f && out[0] < 4.001f && out[kHeads * kDim - 1] > 3.999f ? 0 : 1;
}
