"""What models read: regions, captions, nouns and boxes, and the data sets made of them."""
