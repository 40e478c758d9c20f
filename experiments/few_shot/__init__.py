"""`macaron few_shot`: zero-shot and few-shot evaluation of language models."""
