"""Images and videos that users hand us, read with care, and the files that commands write."""
