"""OpenAI and every compatible server. The only package that imports the `openai` SDK."""
