"""The parameters of Upsonic's storages. What names Upsonic's tables has no effect: Aftermind has its own."""

from aftermind.integrations.framework_store_urls import StoreParameters

TABLES = dict.fromkeys(("session_table", "user_memory_table", "knowledge_table", "id"))
COLLECTIONS = dict.fromkeys(("session_collection", "user_memory_collection", "knowledge_collection", "id"))
MEM0 = ("session_table", "user_memory_table", "cultural_knowledge_table", "knowledge_table")
GIVE_URL = "a client of the program is not used. Give `db_url`."

_SQLITE = StoreParameters(
    addresses=("{db_engine}", "{db_url}", "sqlite:{db_file}", "sqlite:./upsonic.db"),
    defaults={"db_file": None, "db_engine": None, "db_url": None, **TABLES},
)
_POSTGRES = StoreParameters(
    addresses=("{db_engine}", "{db_url}", ""),
    defaults=dict.fromkeys(("db_url", "db_engine", "db_schema", *list(TABLES)[:3], "create_schema", "id")),
    namespace="db_schema",
)
_MONGO = StoreParameters(
    addresses=("{db_url}",),
    defaults={"db_client": None, "db_name": "upsonic", "db_url": None, **COLLECTIONS},
    path="db_name",
    refused={"db_client": GIVE_URL},
)
_MEM0 = StoreParameters(
    addresses=("mem0+{host.scheme}://[{api_key}@]{host.netloc}", "mem0+https://{api_key}@api.mem0.ai", "mem0:"),
    defaults=dict.fromkeys(("memory_client", "api_key", "host", "org_id", "project_id", "config", *MEM0))
    | {"default_user_id": "upsonic_default", "id": None},
    with_scheme=("host",),
    refused=dict.fromkeys(("memory_client", "config"), "a client of the program is not used. Give `api_key`."),
)
PARAMETERS = (
    {
        "InMemoryStorage": StoreParameters(addresses=("inmemory",), defaults=TABLES),
        "JSONStorage": StoreParameters(addresses=("json:{db_path}",), defaults={"db_path": "./upsonic", **TABLES}),
        "RedisStorage": StoreParameters(
            addresses=("{db_url}",),
            defaults={
                "id": None,
                "redis_client": None,
                "db_url": "redis://localhost:6379/0",
                "db_prefix": "upsonic",
                "expire": None,
                **TABLES,
            },
            key_prefix="db_prefix",
            lifetime="expire",
            refused={"redis_client": GIVE_URL},
        ),
    }
    | dict.fromkeys(("SqliteStorage", "AsyncSqliteStorage"), _SQLITE)
    | dict.fromkeys(("PostgresStorage", "AsyncPostgresStorage"), _POSTGRES)
    | dict.fromkeys(("MongoStorage", "AsyncMongoStorage"), _MONGO)
    | dict.fromkeys(("Mem0Storage", "AsyncMem0Storage"), _MEM0)
)
