# The page in an image: docker build -t headroom . && docker run --rm -p 8501:8501 --read-only --tmpfs /tmp headroom
FROM python:3.13-slim AS packages
COPY requirements.lock deploy/slim.py /build/
RUN python -m venv /opt/headroom \
 && /opt/headroom/bin/python -m pip install --no-cache-dir --require-hashes --only-binary :all: -r /build/requirements.lock \
 && /opt/headroom/bin/python /build/slim.py /opt/headroom pip

FROM python:3.13-slim
COPY --from=packages /opt/headroom /opt/headroom
WORKDIR /app
COPY app.py serve.py ./
COPY .streamlit .streamlit
COPY data data
COPY estimator estimator
COPY dashboard dashboard
COPY pages pages
RUN /opt/headroom/bin/python -m compileall -q estimator dashboard pages app.py serve.py
USER 10001:10001
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_IMPLICIT_TOKEN=1
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["/opt/headroom/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]
CMD ["/opt/headroom/bin/python", "-m", "streamlit", "run", "serve.py", "--server.address", "0.0.0.0", "--server.port", "8501"]
