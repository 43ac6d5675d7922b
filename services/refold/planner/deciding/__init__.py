"""From an input to what is written: answers, who has room, and what runs mean for each other."""
