"""Server: an OpenAI-compatible public plane, an admin plane, and the tenants of both.

Roughly from the outside in:

| module | holds |
|---|---|
| ``serve``, ``planes`` | the process: model, two web servers, the end |
| ``listen``, ``silence`` | its ports and connections |
| ``announcement``, ``logs`` | what is said at the start, what is written down |
| ``public``, ``admin`` | the two applications |
| ``exchange``, ``gate``, ``body``, ``faults`` | their layers |
| ``completions``, ``chat``, ``tokenize``, ``models``, ``health`` | public routes |
| ``image_files``, ``remote_images`` | where a chat's images come from |
| ``uploads``, ``upload_routes``, ``multipart`` | files sent ahead |
| ``images_config``, ``shown_tokens`` | limits of images, and how prompts with some show |
| ``operations``, ``prompt_reader``, ``attendance`` | what admin routes do |
| ``sharing*``, ``selection`` | approvals, invalidation and revoked domains there |
| ``miss_*``, ``journal``, ``divergence`` | why requests missed |
| ``protocol*``, ``admin_protocol``, ``validation``, ``errors`` | bodies and answers |
| ``chat_template``, ``prompt_encoder``, ``sampling`` | fields made into requests |
| ``calls``, ``streaming``, ``off_loop`` | one call to the engine |
| ``replies``, ``chat_reply``, ``completion_reply``, ``logprobs`` | its answer |
| ``page``, ``ui/`` | the page's own files |
| ``runs*``, ``figures`` | what it shows of the tree and of this moment |
| ``adapter_admin`` | the routes that load and unload adapters |
| ``metrics``, ``instruments``, ``known_names``, ``snapshot`` | figures for Prometheus |
| ``what_if*`` | what other cache sizes would do |
| ``hits``, ``timings``, ``recent``, ``observer`` | where they come from |
| ``worth``, ``worth_*`` | what caching saves and holds, and whether it pays |
| ``credentials``, ``keys``, ``key_records``, ``limits`` | who may come in, how much |
| ``grants``, ``permits`` | whose KV a call may use, and until when it may begin |
| ``config``, ``config_*``, ``served_model`` | what is served, and how |
"""
