"""Engine: the model, the steps, and what they are made of.

The upper part decides and keeps no tensors; the lower part computes.

| module | holds |
|---|---|
| ``engine`` | the door: submit, step, abort, fork, generate, warm, lookup |
| ``stepper`` | one step: execute, sample, advance, end |
| ``revocation`` | the end of all that a domain has |
| ``scheduler`` | which sequence advances by how many tokens |
| ``admission``, ``waiting``, ``request_queue`` | who may run next |
| ``step_draft`` | a step while it is being planned |
| ``sequence``, ``reply``, ``held_tokens`` | the state of one request |
| ``request``, ``config``, ``counters``, ``arguments`` | values at the outside |
| ``batch`` | the step plan, and the seam for a runner |
| ``model_runner``, ``attention``, ``kv_store`` | a plan in, logits out |
| ``quantization`` | KV as whole numbers with scales |
| ``families``, ``row_probe``, ``row_tails``, ``self_check`` | which models, and how exact |
| ``row_layers``, ``activations``, ``linear`` | layers whose rows are apart |
| ``packing``, ``packed_linear``, ``packed_experts``, ``row_norm`` | the compiled ones |
| ``fusion``, ``fused_mlp``, ``fused_layer`` | several of them in one call |
| ``layer_fusion``, ``fused_stack`` | which layers, and all of them without a loop |
| ``panels``, ``panel_weight``, ``fresh_pages`` | the weights they read, and their memory |
| ``adapter_shelf``, ``async_adapters``, ``adapter_name`` | LoRA adapters by name |
| ``adapter``, ``adapter_hooks``, ``low_rank`` | their layers, beside the model's |
| ``adapted_rows``, ``fused_adapters`` | which rows pass them, and how in fused layers |
| ``adapter_loading`` and other ``adapter_*`` | their files, and what fits a model |
| ``activation`` | adapters that set in somewhere in a prompt |
| ``mixed_prompt``, ``read_prompt`` | prompts with contents that are no tokens |
| ``sequence_content``, ``model_inputs`` | the same in a sequence and in a step |
| ``prompt_mixer``, ``images``, ``known_images`` | images and embeddings as they come |
| ``vision_model``, ``image_check`` | what a model makes of images, and whether it may |
| ``sampler``, ``detokenizer`` | logits to tokens, tokens to text |
"""
