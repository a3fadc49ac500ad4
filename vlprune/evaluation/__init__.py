"""Questions, answers, accuracy, and the folders and reports that hold them."""
