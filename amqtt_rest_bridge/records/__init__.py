"""What is counted and kept of calls and requests for the admin port: by the broker process, by each bridge process.

The last records of each route, without payloads. They travel as the frames in `link.admin_frames`; `admin` shows them.
"""
