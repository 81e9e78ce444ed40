"""What every room needs and knows nothing of the domain: texts, progress, files, schemas, the cache, programs."""
