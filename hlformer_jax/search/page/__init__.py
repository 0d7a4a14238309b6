"""The page with which a person searches, sees the moment and plays it, and the server behind it.

server      the addresses below, and `serve`
guard       who may ask: the hosts and origins that are answered, and the headers of every answer
lanes       threads for what takes long, so that a busy server answers others
answers     what the page is told, in JSON
files       the files that it is given, by ids
refusals    errors, as it takes them
index.html, page.css, page.js    the page, without a build and without anything from elsewhere

    GET /                    the page
    GET /api/query?q=…       {"hits": [{"id", "video", "folder", "score", "duration", "moments":
                             [{"start", "end", "peak", "score"}], "times", "scores"}], "seconds"};
                             k, folder, since and until (days as 2026-11-22) where wanted
    GET /api/status          {"encoder", "videos", "seconds", "failures", "failed", "recent",
                             "index"}
    GET /api/folders         {"folders": […]}
    GET /video/ID            the file, or a range of it
    GET /thumbnail/ID?t=…    a JPEG; width where wanted
    GET /cut/ID?start=…&end=…    a clip to download; margin where wanted

Times are seconds. What is wrong is `{"error": "one line"}`, with status 400 for a wrong parameter,
403 for another site, 404 for an unknown video, 410 for a file that is gone, 422 for a video that
cannot be read, 503 where too much is waiting.
"""
