"""Images and videos that users hand us, and the files that commands write."""
