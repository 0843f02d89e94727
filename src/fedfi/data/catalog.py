"""Ratings data sets by name, with a line on each."""

RATINGS = {
    "synthetic_ratings": "Made-up ratings of 200 users and 300 items (embedded)",
    "filmtrust": "FilmTrust: 34,889 ratings, 1,227 users, 2,059 films; no real times",
    "amazon_video": "Amazon-Video: 23,181 ratings, 1,372 users, 7,957 videos",
    "ml_100k": "MovieLens-100K: 100,000 ratings, 943 users, 1,682 films",
    "ml_1m": "MovieLens-1M: 1,000,209 ratings, 6,040 users, 3,706 films",
    "lastfm_2k": "Last.fm of HetRec 2011: 186,479 tags that 1,892 users gave to artists, with times",
}
