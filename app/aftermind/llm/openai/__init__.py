"""OpenAI and every server that speaks as it does. The only package that imports the `openai` SDK."""
