"""What is said, shown or written in a video: cues, recognition and passages."""
